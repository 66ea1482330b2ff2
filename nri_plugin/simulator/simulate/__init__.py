"""`nri-pin simulate`: what would become of these pods on that machine."""
