//go:build !nri_0_12

package main

import (
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

func lifecycle(nri *adaptation.Adaptation, ctx context.Context) {
	pod, container := &api.PodSandbox{Id: "pod0"}, &api.Container{Id: "new"}
	event := func() *api.StateChangeEvent { return &api.StateChangeEvent{Pod: pod, Container: container} }
	fmt.Println("events:", nri.RunPodSandbox(ctx, &api.StateChangeEvent{Pod: pod}), nri.PostCreateContainer(ctx, event()),
		nri.StartContainer(ctx, event()), nri.PostStartContainer(ctx, event()), nri.PostUpdateContainer(ctx, event()),
		nri.RemoveContainer(ctx, event()), nri.StopPodSandbox(ctx, event()), nri.RemovePodSandbox(ctx, event()))
	update, err := nri.UpdateContainer(ctx, &api.UpdateContainerRequest{Pod: pod, Container: container,
		LinuxResources: &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(0), Cpus: "7"}}})
	fmt.Println("update:", update, err)
	_, err = nri.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: container})
	fmt.Println("stop:", err)
}
