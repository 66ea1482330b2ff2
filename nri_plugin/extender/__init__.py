"""`nri-pin extender`: filter and scores for kube-scheduler."""
