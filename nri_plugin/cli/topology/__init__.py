"""`nri-pin topology`, and every picture of a machine."""
