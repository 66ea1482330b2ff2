"""`nri-pin run`: answers the runtime, writes cgroups, keeps the checkpoint."""
