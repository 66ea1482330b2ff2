"""What others see of the agent: metrics and status; and what it hears from the exporter between requests."""
