"""Outputs with the PCI tree, from lspci and NCCL, and the machine that such a tree makes (`pci_tree`)."""
