"""Events on disk, and what they decide when they are replayed."""
