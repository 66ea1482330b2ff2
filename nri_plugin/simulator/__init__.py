"""A node without a node: the runtime's side of NRI, described machines, and a cgroup tree by the kernel's rules."""
