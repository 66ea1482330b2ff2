"""`nri-pin replay`: a recording, decided again."""
