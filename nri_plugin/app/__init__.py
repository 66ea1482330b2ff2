"""The agent and what it is configured by: the only ring with a clock, a logger and threads."""
