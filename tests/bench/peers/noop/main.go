// A plugin that hears every event and does nothing: what NRI itself costs.
package main

import (
	"context"
	"log"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type plugin struct{}

func (plugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}
func (plugin) RunPodSandbox(context.Context, *api.PodSandbox) error    { return nil }
func (plugin) StopPodSandbox(context.Context, *api.PodSandbox) error   { return nil }
func (plugin) RemovePodSandbox(context.Context, *api.PodSandbox) error { return nil }
func (plugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, nil
}
func (plugin) PostCreateContainer(context.Context, *api.PodSandbox, *api.Container) error { return nil }
func (plugin) StartContainer(context.Context, *api.PodSandbox, *api.Container) error      { return nil }
func (plugin) PostStartContainer(context.Context, *api.PodSandbox, *api.Container) error  { return nil }
func (plugin) StopContainer(context.Context, *api.PodSandbox, *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}
func (plugin) RemoveContainer(context.Context, *api.PodSandbox, *api.Container) error { return nil }

func main() {
	one, err := stub.New(plugin{}, stub.WithPluginName("noop"), stub.WithPluginIdx("10"), stub.WithSocketPath(os.Args[1]))
	if err == nil {
		err = one.Run(context.Background())
	}
	if err != nil {
		log.Fatal(err)
	}
}
