"""`nri-pin simulate`, and its report as one HTML file."""
