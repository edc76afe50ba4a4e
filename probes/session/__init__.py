"""Measures copies: `measuring` opens CUDA and NVML, `session` runs the jobs, `watched` does so in a child."""
