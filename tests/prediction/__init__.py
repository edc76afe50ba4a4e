"""Mirrors gputopo/prediction."""
