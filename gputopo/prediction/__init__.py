"""Predicts the seconds of a training step on a set of GPUs for a placement of the variables."""
