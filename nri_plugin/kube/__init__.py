"""The Kubernetes API: a client, and the objects that are read and written."""
