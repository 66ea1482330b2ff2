"""The command line: prints, asks, sets exit codes. Nothing here is loaded by the running agent."""

PROGRAM = "nri-pin"
COMPLETION_VARIABLE = "_NRI_PIN_COMPLETE"
"""A shell sets this variable to ask for completions."""
