"""What the samples of a run alone show of its GPUs and host, and where a program's processes were. Pure."""
