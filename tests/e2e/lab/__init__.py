"""The outer half: builds roots and guests and starts them. `python -m tests.e2e.lab` is `hack/lab`."""
