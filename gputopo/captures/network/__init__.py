"""Readers of network benchmarks between hosts: perftest and iperf3."""
