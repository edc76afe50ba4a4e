"""Turns values into reports. Nothing here prints, reads a file or queries the machine."""
