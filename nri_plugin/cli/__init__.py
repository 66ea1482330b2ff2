"""The command line: prints, asks, sets exit codes. Nothing here is loaded by the running agent."""
