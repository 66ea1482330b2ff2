"""`nri-pin explain`."""
