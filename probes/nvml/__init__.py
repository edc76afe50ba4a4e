"""NVML: `door` makes the calls, `questions` is the table of calls; other modules read GPUs and samples."""
