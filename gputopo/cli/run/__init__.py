"""`gputopo run`: its options, the flags of other programs, and the steps of a run from start to end."""
