"""`nri-pin replay`."""
