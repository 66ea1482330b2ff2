"""The rules: which CPUs, which memory, which NUMA nodes, admitted or refused. Pure; knows no wire."""
