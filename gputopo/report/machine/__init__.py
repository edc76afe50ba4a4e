"""What is shown of a machine: its facts, GPUs, topology and health, samples over time, and changes."""
