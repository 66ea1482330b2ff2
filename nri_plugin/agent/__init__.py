"""`nri-pin run`: answer the runtime, write cgroups, save the checkpoint. Begin to read in `serving/handler.py`."""
