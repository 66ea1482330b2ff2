// Command kubelet_start answers whether a kubelet of this release starts with the given flags, and with which settings.
//
// It takes the kubelet's flags, and goes through the steps of a kubelet that starts: flags, --config, files of
// --config-dir, flags again, validation, amounts, then its Topology and CPU Managers on a machine of 8 CPUs. Everything
// that judges is the kubelet's own code; here is only the order of the steps. Prints {"refused": TEXT} or {"settings": {...}}.
//
// Source: cmd/kubelet/app/server.go, NewKubeletCommand and run.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	cadvisor "github.com/google/cadvisor/info/v1"
	"github.com/spf13/pflag"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/apis/config"
	conversion "k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/configfiles"
	"k8s.io/kubernetes/pkg/util/filesystem"
	"k8s.io/utils/cpuset"
)

func main() {
	klog.SetLogger(klog.Logger{})
	found, err := start(os.Args[1:])
	answer := map[string]any{"settings": found}
	if err != nil {
		answer = map[string]any{"refused": err.Error()}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		panic(err)
	}
}

func start(args []string) (*v1beta1.KubeletConfiguration, error) {
	ctx := context.Background()
	flags := options.NewKubeletFlags()
	settings, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	if err := parse(flags, settings, args); err != nil {
		return nil, err
	}
	if flags.KubeletConfigFile != "" {
		loader, err := configfiles.NewFsLoader(&filesystem.DefaultFs{}, flags.KubeletConfigFile)
		if err != nil {
			return nil, err
		}
		if settings, err = loader.Load(ctx); err != nil {
			return nil, err
		}
	}
	if flags.KubeletDropinConfigDirectory != "" {
		if err := merge(settings, flags.KubeletDropinConfigDirectory); err != nil {
			return nil, err
		}
	}
	gates := settings.FeatureGates
	if err := parse(options.NewKubeletFlags(), settings, args); err != nil {
		return nil, err
	}
	for name, on := range gates {
		if _, given := settings.FeatureGates[name]; !given {
			settings.FeatureGates[name] = on
		}
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(settings.FeatureGates); err != nil {
		return nil, err
	}
	settings.FailCgroupV1 = false // the machine that records may have them
	if err := validation.ValidateKubeletConfiguration(settings, utilfeature.DefaultFeatureGate); err != nil {
		return nil, err
	}
	shown := &v1beta1.KubeletConfiguration{}
	if err := conversion.Convert_config_KubeletConfiguration_To_v1beta1_KubeletConfiguration(settings, shown, nil); err != nil {
		return nil, err
	}
	return shown, managers(settings)
}

func parse(flags *options.KubeletFlags, settings *config.KubeletConfiguration, args []string) error {
	set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	set.SetOutput(io.Discard)
	flags.AddFlags(set)
	options.AddKubeletConfigFlags(set, settings)
	return set.Parse(args)
}

func merge(settings *config.KubeletConfiguration, folder string) error {
	versioned := &v1beta1.KubeletConfiguration{}
	if err := conversion.Convert_config_KubeletConfiguration_To_v1beta1_KubeletConfiguration(settings, versioned, nil); err != nil {
		return err
	}
	whole, err := json.Marshal(versioned)
	if err != nil {
		return err
	}
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(entry.Name()) != ".conf" {
			return err
		}
		loader, err := configfiles.NewFsLoader(&filesystem.DefaultFs{}, path)
		if err != nil {
			return err
		}
		patch, kind, err := loader.LoadIntoJSON()
		if err != nil {
			return err
		}
		if kind == nil || *kind != v1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration") {
			return fmt.Errorf("%s: is of kind %v", entry.Name(), kind)
		}
		whole, err = jsonpatch.MergePatch(whole, patch)
		return err
	})
	if err != nil {
		return err
	}
	versioned = &v1beta1.KubeletConfiguration{}
	if err := json.Unmarshal(whole, versioned); err != nil {
		return err
	}
	conversion.SetDefaults_KubeletConfiguration(versioned)
	return conversion.Convert_v1beta1_KubeletConfiguration_To_config_KubeletConfiguration(versioned, settings, nil)
}

func managers(settings *config.KubeletConfiguration) error {
	reserved, err := cpuset.Parse(settings.ReservedSystemCPUs)
	if err != nil {
		return err
	}
	milli := resource.Quantity{}
	for _, amounts := range []map[string]string{settings.KubeReserved, settings.SystemReserved} {
		for name, text := range amounts {
			amount, err := resource.ParseQuantity(text)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if name == "cpu" {
				milli.Add(amount)
			}
		}
	}
	if reserved.Size() > 0 {
		milli = *resource.NewQuantity(int64(reserved.Size()), resource.DecimalSI)
	}
	logger := klog.Background()
	// With the policy none, the Topology Manager does not read its options.
	if settings.TopologyManagerPolicy != topologymanager.PolicyNone {
		if _, err := topologymanager.NewPolicyOptions(logger, settings.TopologyManagerPolicyOptions); err != nil {
			return err
		}
	}
	policy, options := settings.CPUManagerPolicy, settings.CPUManagerPolicyOptions
	_, err = cpumanager.NewManager(logger, policy, options, 0, machine(), reserved, v1.ResourceList{v1.ResourceCPU: milli}, "", nil)
	return err
}

// machine has 2 NUMA nodes of 4 cores each, as the machine of the tests.
func machine() *cadvisor.MachineInfo {
	found := &cadvisor.MachineInfo{NumCores: 8, NumSockets: 1}
	for node := 0; node < 2; node++ {
		cores := []cadvisor.Core{}
		for core := node * 4; core < node*4+4; core++ {
			cores = append(cores, cadvisor.Core{Id: core, Threads: []int{core}, SocketID: 0})
		}
		found.Topology = append(found.Topology, cadvisor.Node{Id: node, Memory: 1 << 34, Cores: cores})
	}
	return found
}
