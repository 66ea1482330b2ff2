"""`nri-pin state`."""
