"""A run on several hosts as other programs start it: Slurm, mpirun, Kubernetes."""
