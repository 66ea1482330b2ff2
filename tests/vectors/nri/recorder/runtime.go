// The runtime's half of NRI with invented pods and containers: what a plugin's answers come to is printed.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

const creations = 3000

func main() {
	scene, socket, plugins, version := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	pods, containers := inventory(scene)
	synced := make(chan bool, 10)
	synchronize := func(ctx context.Context, call adaptation.SyncCB) error {
		began := time.Now()
		updates, err := call(ctx, pods, containers)
		fmt.Println("synchronize: updates", len(updates), "error", err, "took", time.Since(began))
		if len(updates) > 0 || err != nil {
			synced <- true
		}
		return err
	}
	update := func(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		return updates, nil
	}
	nri, err := adaptation.New("containerd", version, synchronize, update, adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(plugins), adaptation.WithPluginConfigPath(plugins+".d"))
	if err == nil {
		err = nri.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if scene != "launched" {
		<-synced
	}
	time.Sleep(100 * time.Millisecond)
	show(nri, 0)
	show(nri, 10, "dup")
	show(nri, 10, "refuse")
	lifecycle(nri, context.Background())
	if scene != "short" {
		sizes(nri)
		latency(nri)
		show(nri, 10, "late")
		time.Sleep(1500 * time.Millisecond)
	}
}

func inventory(scene string) (pods []*api.PodSandbox, containers []*api.Container) {
	podCount, containerCount, size := 600, 3000, 3000
	if scene == "short" {
		podCount, containerCount, size = 2, 3, 30
	}
	for i := 0; i < podCount; i++ {
		pods = append(pods, &api.PodSandbox{Id: fmt.Sprintf("pod%d", i), Name: "p", Annotations: map[string]string{"a": strings.Repeat("x", 600)}})
	}
	for i := 0; i < containerCount; i++ {
		containers = append(containers, &api.Container{Id: fmt.Sprintf("c%d", i), PodSandboxId: "pod0", Name: "c", Env: []string{"A=" + strings.Repeat("y", size)}})
	}
	return pods, containers
}

func create(nri *adaptation.Adaptation, size int, wishes ...string) (*api.CreateContainerResponse, error) {
	annotations := map[string]string{"size": fmt.Sprint(size)}
	for _, wish := range wishes {
		annotations[wish] = "1"
	}
	return nri.CreateContainer(context.Background(), &api.CreateContainerRequest{
		Pod: &api.PodSandbox{Id: "pod0", Uid: "u", Name: "n", Namespace: "ns", Pid: 77, Linux: &api.LinuxPodSandbox{
			CgroupParent: "/kubepods.slice/kubepods-podu.slice",
			PodResources: &api.LinuxResources{
				Cpu:    &api.LinuxCPU{Shares: api.UInt64(2048), Quota: api.Int64(0)},
				Memory: &api.LinuxMemory{Limit: api.Int64(0)},
			}}},
		Container: &api.Container{Id: "new", Name: "app", PodSandboxId: "pod0", Annotations: annotations,
			Env:     []string{"B=" + strings.Repeat("z", 3400)},
			Args:    []string{"/bin/sleep", "inf"},
			Labels:  map[string]string{"io.kubernetes.container.name": "app", "io.kubernetes.pod.namespace": "ns"},
			Mounts:  []*api.Mount{{Destination: "/etc/hosts", Type: "bind", Source: "/var/x", Options: []string{"rbind", "rw"}}},
			Hooks:   &api.Hooks{Poststop: []*api.Hook{{Path: "/bin/true"}}},
			Rlimits: []*api.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1024}},
			Linux: &api.LinuxContainer{
				OomScoreAdj: api.Int(-997),
				CgroupsPath: "kubepods.slice:cri-containerd:new",
				Namespaces:  []*api.LinuxNamespace{{Type: "network", Path: "/proc/1/ns/net"}},
				Devices:     []*api.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195, FileMode: api.FileMode(0666), Uid: api.UInt32(0)}},
				Resources: &api.LinuxResources{
					Cpu:            &api.LinuxCPU{Shares: api.UInt64(2048), Quota: api.Int64(-1), Period: api.UInt64(100000)},
					Memory:         &api.LinuxMemory{Limit: api.Int64(1 << 30), Swap: api.Int64(0)},
					HugepageLimits: []*api.HugepageLimit{{PageSize: "2MB"}},
					Unified:        map[string]string{"memory.oom.group": "1"},
					Devices:        []*api.LinuxDeviceCgroup{{Access: "rwm"}},
				}}},
	})
}

func show(nri *adaptation.Adaptation, size int, wishes ...string) {
	began := time.Now()
	got, err := create(nri, size, wishes...)
	bytes := 0
	for _, entry := range got.GetAdjust().GetEnv() {
		bytes += len(entry.Value)
	}
	fmt.Println("create", size, wishes, "cpus", got.GetAdjust().GetLinux().GetResources().GetCpu().GetCpus(), "bytes", bytes,
		"updates", len(got.GetUpdate()), "error", err, "took", time.Since(began))
}

func sizes(nri *adaptation.Adaptation) {
	good := 0
	for size := 3990; size < 4110; size++ {
		got, err := create(nri, size)
		if err == nil && len(got.GetAdjust().GetEnv()) == 1 && len(got.GetAdjust().GetEnv()[0].Value) == size {
			good++
		}
	}
	fmt.Println("replies around 4096 bytes: read", good, "of 120")
	for _, size := range []int{100, 6000, 1000000, 4<<20 - 100, 5000000} {
		show(nri, size)
	}
}

func latency(nri *adaptation.Adaptation) {
	var took []time.Duration
	for i := 0; i < creations; i++ {
		began := time.Now()
		_, _ = create(nri, 20)
		took = append(took, time.Since(began))
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	fmt.Println("create, back to back: p50", took[creations/2], "p99", took[creations*99/100], "max", took[creations-1])
}
