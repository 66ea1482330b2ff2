"""Real container runtimes, and real kernels with several NUMA nodes, around the agent of this checkout.

`lab` runs on the machine that was asked for the tests and needs nothing but the standard library: it fetches
packages, builds roots and guest disks, starts them and reads their reports. `inside` runs in those roots and guests:
it starts the container runtime and the agent, plays the kubelet over CRI and compares what the kernel, the OCI
runtime and the checkpoint say. `hack/e2e` is the command.
"""
