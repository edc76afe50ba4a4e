"""Outputs of tools that measure bandwidth, on one machine and between hosts."""
