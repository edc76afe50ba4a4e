"""What a run shows: its display, its dry run, the file of metrics."""
