"""Decides which copies to measure, what they should reach, and which GPUs share a link."""
