"""Simulated nodes: described machines, a container runtime with cgroups, scenarios, and placement without processes."""
