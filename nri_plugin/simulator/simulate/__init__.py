"""`nri-pin simulate`: placements and refusals of pods on a machine, without processes."""
