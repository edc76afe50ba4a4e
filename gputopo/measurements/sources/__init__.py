"""Throughputs from runs and sweeps of gputopo."""
