"""What the cluster is told and asked: objects of its API, and what a scheduler wants to know."""
