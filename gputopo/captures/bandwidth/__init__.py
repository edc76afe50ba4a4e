"""What tools that measure bandwidths print, of one machine and between hosts."""
