"""`gputopo run`: its options, the flags of other programs, and what it does with a run from start to end."""
