"""How the hosts of one run find one another: rank 0's meeting, the others as its guests, their messages."""
