"""`gputopo sweep`: a matrix of runs."""
