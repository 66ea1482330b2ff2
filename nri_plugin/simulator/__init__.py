"""A node without a node: described machines, a runtime, a cgroup tree, scenarios."""
