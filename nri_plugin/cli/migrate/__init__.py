"""`nri-pin migrate`: a node changes between the kubelet's managers and nri-pin, step by step, and back at a failure."""
