"""`nri-pin export`: publishes the node as a NodeResourceTopology object, and serves facts to the agent."""
