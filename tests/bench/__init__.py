"""Figures, not judgements: nothing here asserts a time. Run by hack/bench."""
