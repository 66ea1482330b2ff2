"""The protocols between runtime and plugin, without I/O: ttrpc and, on top of it, NRI."""
