"""A node natively on this machine: a real kubelet and containerd on a described machine, in namespaces and cgroups of its own."""
