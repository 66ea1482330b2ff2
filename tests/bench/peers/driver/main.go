// The runtime's side of NRI without a runtime: it plays pods and containers to one plugin and prints how long each
// answer takes, one JSON object a line.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

var (
	socket    = flag.String("socket", "", "NRI socket to listen on")
	cgroups   = flag.String("cgroups", "", "root of a played cgroup v2 tree; empty for none")
	everyCPU  = flag.String("cpus", "0-63", "CPUs of the machine")
	pods      = flag.Int("pods", 0, "pods that run already")
	each      = flag.Int("each", 5, "containers of each of them")
	exclusive = flag.Int("exclusive", 0, "of these pods with one exclusive CPU for each container")
	rounds    = flag.Int("rounds", 200, "creations of each kind")
	slow      = flag.Int("slow", 50, "of each kind at a distance of 20 ms")
	limit     = flag.Duration("limit", 2*time.Second, "longest answer")
)

var listening atomic.Bool

const (
	// Little enough for 3,000 of them beside what is measured: a policy may refuse what does not fit.
	crowdCPU    = 0.005
	memoryLimit = 4 << 20

	guaranteed = "/kubepods"
	burstable  = "/kubepods/burstable"
	bestEffort = "/kubepods/besteffort"
)

func main() {
	flag.Parse()
	ctx, synchronized := context.Background(), make(chan struct{}, 8)
	adaptation.SetPluginRequestTimeout(*limit)
	sandboxes, containers := crowd(*pods, *each, *exclusive)
	synchronize := func(ctx context.Context, call adaptation.SyncCB) error {
		began := time.Now()
		_, err := call(ctx, sandboxes, containers)
		if err != nil {
			log.Fatalf("Synchronize failed after %v: %v", time.Since(began), err)
		}
		if listening.Load() { // the library also calls this at its start, for no plugin
			say("synchronize", []time.Duration{time.Since(began)}, 0)
			synchronized <- struct{}{}
		}
		return err
	}
	update := func(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		return updates, nil
	}
	none := filepath.Join(filepath.Dir(*socket), "no-plugins")
	runtime, err := adaptation.New("containerd", "v2.3.4", synchronize, update, adaptation.WithSocketPath(*socket),
		adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	if err == nil {
		err = runtime.Start()
	}
	if err != nil {
		log.Fatal(err)
	}
	listening.Store(true)
	fmt.Println(`{"name":"listening"}`)
	<-synchronized
	wait() // the caller reads the plugin's memory
	// The first answers of a process are slower than all others: they are not measured.
	play(ctx, runtime, "warm", *rounds/10, 0.5, 0)
	// Both kinds take turns, so that a slow moment of the machine meets both.
	for part := 0; part < 4; part++ {
		play(ctx, runtime, "shared", *rounds/4, 0.5, 0)
		play(ctx, runtime, "exclusive", *rounds/4, 4, 0)
	}
	play(ctx, runtime, "shared-20ms", *slow, 0.5, 20*time.Millisecond)
	play(ctx, runtime, "exclusive-20ms", *slow, 4, 20*time.Millisecond)
	fmt.Println(`{"name":"end"}`)
	wait()
}

// wait goes on when the caller says so.
func wait() {
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// say prints times, and how many updates of other containers came with the answers.
func say(name string, took []time.Duration, updates int) {
	us := make([]float64, len(took))
	for i, one := range took {
		us[i] = float64(one.Nanoseconds()) / 1000
	}
	line, _ := json.Marshal(map[string]any{"name": name, "us": us, "updates": updates})
	fmt.Println(string(line))
}

var numbers int

// play lets pods of one container come and go and prints how long their CreateContainer took.
func play(ctx context.Context, runtime *adaptation.Adaptation, name string, count int, cpu float64, pause time.Duration) {
	took, updates := make([]time.Duration, 0, count), 0
	for i := 0; i < count; i++ {
		numbers++
		pod := sandbox(fmt.Sprintf("new-%d", numbers), class(cpu >= 1, 0))
		made := container(pod, "app", cpu)
		must(runtime.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod}))
		time.Sleep(pause)
		began := time.Now()
		response, err := runtime.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: made})
		took = append(took, time.Since(began))
		must(err)
		updates += len(response.GetUpdate())
		cpus := response.GetAdjust().GetLinux().GetResources().GetCpu().GetCpus()
		made.Linux.Resources.Cpu.Cpus = cpus
		makeCgroup(made.Linux.CgroupsPath, cpus)
		must(runtime.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pod, Container: made}))
		must(runtime.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: made}))
		must(runtime.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: made}))
		_, err = runtime.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: made})
		must(err)
		must(runtime.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: made}))
		must(runtime.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod}))
		must(runtime.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod}))
		if *cgroups != "" {
			_ = os.RemoveAll(filepath.Join(*cgroups, pod.Linux.CgroupParent))
		}
	}
	if name != "warm" && count > 0 {
		say(name, took, updates)
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// crowd is a full node: a few Guaranteed pods with exclusive CPUs, the others Burstable, every third BestEffort.
func crowd(count, each, exclusive int) (all []*api.PodSandbox, containers []*api.Container) {
	for i := 0; i < count; i++ {
		parent, cpu := class(i < exclusive, i), crowdCPU
		switch parent {
		case guaranteed:
			cpu = 1
		case bestEffort:
			cpu = 0
		}
		pod := sandbox(fmt.Sprintf("crowd-%d", i), parent)
		all = append(all, pod)
		for j := 0; j < each; j++ {
			one := container(pod, fmt.Sprintf("c%d", j), cpu)
			one.State = api.ContainerState_CONTAINER_RUNNING
			makeCgroup(one.Linux.CgroupsPath, "")
			containers = append(containers, one)
		}
	}
	return all, containers
}

// class is the cgroup above a pod.
func class(exclusive bool, number int) string {
	switch {
	case exclusive:
		return guaranteed
	case number%3 == 1:
		return bestEffort
	}
	return burstable
}

func sandbox(name, parent string) *api.PodSandbox {
	return &api.PodSandbox{
		Id: fmt.Sprintf("%-64s", name), Uid: "uid-" + name, Name: name, Namespace: "default", Pid: 1,
		Linux: &api.LinuxPodSandbox{CgroupParent: parent + "/poduid-" + name},
	}
}

func container(pod *api.PodSandbox, name string, cpu float64) *api.Container {
	labels, annotations := map[string]string{}, map[string]string{}
	for i := 0; i < 10; i++ {
		labels[fmt.Sprintf("label/%d", i)] = strings.Repeat("value", 6)
		annotations[fmt.Sprintf("io.kubernetes.annotation/%d", i)] = strings.Repeat("value", 8)
	}
	env := make([]string, 60)
	for i := range env {
		env[i] = fmt.Sprintf("VARIABLE_NUMBER_%d=some value of a usual length %d", i, i)
	}
	return &api.Container{
		Id: fmt.Sprintf("%-64s", pod.Name+name), PodSandboxId: pod.Id, Name: name,
		Labels: labels, Annotations: annotations, Env: env,
		Linux: &api.LinuxContainer{
			CgroupsPath: pod.Linux.CgroupParent + "/" + pod.Name + name,
			Resources: &api.LinuxResources{
				Cpu:    &api.LinuxCPU{Shares: api.UInt64(max(2, uint64(cpu*1024)))},
				Memory: &api.LinuxMemory{Limit: api.Int64(memoryLimit)},
			},
		},
	}
}

// makeCgroup leaves a cpuset directory as a runtime does; what is written is effective at once.
func makeCgroup(path, cpus string) {
	if *cgroups == "" {
		return
	}
	folder := *cgroups
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		folder = filepath.Join(folder, part)
		if os.Mkdir(folder, 0o755) != nil {
			continue
		}
		file := filepath.Join(folder, "cpuset.cpus")
		must(os.WriteFile(file, []byte(*everyCPU+"\n"), 0o644))
		must(os.Link(file, file+".effective"))
	}
	if cpus != "" {
		must(os.WriteFile(filepath.Join(folder, "cpuset.cpus"), []byte(cpus+"\n"), 0o644))
	}
}
