"""Placement of variables: the devices, a small class for each placement, the check of every op's device."""
