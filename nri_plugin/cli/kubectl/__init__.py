"""`kubectl nri-pin`: the commands of `nri-pin` for the nodes of a cluster. kubectl itself carries all requests."""
