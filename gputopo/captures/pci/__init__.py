"""What prints the PCI tree, lspci and hwloc, and the machine that such a tree makes (`pci_tree`)."""
