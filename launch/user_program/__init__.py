"""A user's program on planned GPUs: its process, what it reports of its steps, and its other hosts."""
