"""The fits of constants to published figures and runs: scripts, and what the shipped constants predict."""
