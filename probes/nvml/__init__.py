"""NVML: `door` is all that is asked, `calling` is how, and the rest is the questions, a module a theme."""
