"""Scenario files, and the simulated node on which they are played."""
