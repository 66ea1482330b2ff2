"""The state on disk, and the kubelet's state files."""
