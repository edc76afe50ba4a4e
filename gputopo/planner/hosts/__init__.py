"""The plan of several hosts: how near GPUs are to network cards, what the network costs, how many pay."""
