"""What stands between the runtime and its answer. Begin to read in `handler.py`."""
