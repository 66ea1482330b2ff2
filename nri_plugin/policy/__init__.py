"""The kubelet's rules: which CPUs, which memory, which NUMA nodes, admitted or refused. Pure."""
