"""`nri-pin doctor`."""
