"""What Linux and its tools show beside nvidia-smi: kernel log, CPUs and NUMA nodes, /proc, bug reports."""
