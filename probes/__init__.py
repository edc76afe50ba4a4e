"""Reads the real machine: NVML, /sys, /proc. Installs as gputopo.probes."""
