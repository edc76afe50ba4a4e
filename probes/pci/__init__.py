"""The PCI tree of this machine from sysfs: its nodes, their errors, the slots of the GPUs."""
