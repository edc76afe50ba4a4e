"""Jobs of one of several hosts: serving rank 0's training, measuring the network."""
