"""What every process of ours needs: a loop, log lines, HTTP."""
