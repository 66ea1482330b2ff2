"""`nri-pin noise`."""
