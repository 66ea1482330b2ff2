"""Described machines, as a `Topology` or as kernel files."""
