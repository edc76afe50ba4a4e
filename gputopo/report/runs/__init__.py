"""What is shown of a run: its progress, its report, and the report of repeats."""
