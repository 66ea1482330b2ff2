"""The node we run on: its sysfs, its cgroups and our checkpoint file."""
