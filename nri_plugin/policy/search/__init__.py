"""Hints and merges on machines with more than 8 NUMA nodes, found without listing all masks."""
