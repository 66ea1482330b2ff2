"""A node's life with every fault we can cause; see `tests/chaos/__main__.py`."""
