"""Values that every decision reads: sets, topology, options, state, errors."""
