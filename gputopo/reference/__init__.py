"""What is published about GPUs, links and driver codes, each fact with its source."""
