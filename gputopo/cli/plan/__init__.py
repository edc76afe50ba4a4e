"""`gputopo plan`, its options, and what was measured before."""
