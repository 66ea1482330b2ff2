"""A node-level NRI plugin that gives containers NUMA-aligned CPUs and memory nodes, by the kubelet's rules."""

__version__ = "0.1.0"
