"""What is recorded of a program of the user: its spec, its GPUs and host, the steps that it reports."""
