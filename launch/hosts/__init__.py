"""The hosts of one training: which there are, in which order, and how their launchers meet."""
