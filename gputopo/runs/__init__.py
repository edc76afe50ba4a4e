"""Evaluates the events of a run: its result, throughput and slow devices; and the history of bandwidths."""
