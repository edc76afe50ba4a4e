"""The PCI tree of this machine as sysfs tells it: its nodes, their errors, the slots of the GPUs."""
