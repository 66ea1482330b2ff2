"""`nri-pin top`."""
