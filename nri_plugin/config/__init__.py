"""The configuration: one YAML file, its keys, its checks."""
