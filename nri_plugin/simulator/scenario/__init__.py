"""Scenario files, and a node they are played on."""
