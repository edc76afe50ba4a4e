"""Samples of GPUs and host while something runs."""
