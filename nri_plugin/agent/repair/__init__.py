"""Work between requests: what changed behind the agent is found and repaired."""
