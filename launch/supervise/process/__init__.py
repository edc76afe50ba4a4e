"""A worker as a process of its own: started, signalled, heard, bound to its launcher, and its limits."""
