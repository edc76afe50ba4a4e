"""The hosts of one training: which there are, in which order, and which of them this is. Pure."""
