"""A real cluster on one machine: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and a kubelet in a guest."""
