"""ttrpc without I/O: frames, envelopes, and the two ends of a connection."""
