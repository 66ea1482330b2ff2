//go:build nri_0_12

package main

import (
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

func lifecycle(nri *adaptation.Adaptation, ctx context.Context) {
	pod, container := &api.PodSandbox{Id: "pod0"}, &api.Container{Id: "new"}
	fmt.Println("events:", nri.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod}),
		nri.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pod, Container: container}),
		nri.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: container}),
		nri.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: container}),
		nri.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: pod, Container: container}),
		nri.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: container}),
		nri.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod}),
		nri.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod}),
		nri.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: pod}))
	_, err := nri.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{Pod: pod})
	fmt.Println("update pod:", err)
	update, err := nri.UpdateContainer(ctx, &api.UpdateContainerRequest{Pod: pod, Container: container,
		LinuxResources: &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(0), Cpus: "7"}}})
	fmt.Println("update:", update, err)
	_, err = nri.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: container})
	fmt.Println("stop:", err)
}
