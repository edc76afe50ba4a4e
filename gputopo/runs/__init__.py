"""The events of a run evaluated: its result, throughput, slow devices; and the history of bandwidths."""
