"""The runtime's side of NRI, and a cgroup tree with the kernel's rules."""
