"""The node we run on: sysfs, cgroups, devices."""
