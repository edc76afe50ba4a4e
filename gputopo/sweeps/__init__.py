"""A matrix of runs: its file, its cells on a machine, their order, and the time they take."""
