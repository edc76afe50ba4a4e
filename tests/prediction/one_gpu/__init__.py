"""Mirrors gputopo/prediction/one_gpu."""
