"""Placement of variables: the devices, a class for each placement, and the check of every op's device."""
