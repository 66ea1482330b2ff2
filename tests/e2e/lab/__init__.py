"""The outer half: everything that happens before a scenario can run, and the table after it."""
