"""`gputopo run` over several hosts: how it starts there, training by the core, a program of the user."""
