"""Predicts the seconds of a training step on a set of GPUs, with the variables in a place: pure."""
