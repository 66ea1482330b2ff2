"""The inner half: runs in a root or a guest, as root, with the Python found there."""
