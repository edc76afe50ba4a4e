"""What prints the PCI tree, lspci and NCCL, and the machine that such a tree makes (`pci_tree`)."""
