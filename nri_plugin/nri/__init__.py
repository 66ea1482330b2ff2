"""The NRI protocol, plugin side: mux, messages, session. Knows nothing of allocations."""
