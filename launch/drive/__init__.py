"""Starts a training on several hosts by what users have: ssh, srun or mpirun."""
