"""`decide(node, state, event) -> Decision` and what it consists of. Pure."""
