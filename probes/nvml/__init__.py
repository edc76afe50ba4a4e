"""NVML: `door` makes the calls, `questions` is the table of them; GPUs and samples are read by it."""
