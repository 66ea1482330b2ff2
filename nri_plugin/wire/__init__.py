"""The protocols: ttrpc and NRI, without I/O."""
