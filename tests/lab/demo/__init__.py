"""`hack/demo`: a day in the life of a node."""
