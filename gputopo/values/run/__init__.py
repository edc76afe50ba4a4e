"""The values of a run: plan, events, result, reduction methods."""
