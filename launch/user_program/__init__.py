"""A user's program on planned GPUs: its process, the steps that it reports, and its other hosts."""
