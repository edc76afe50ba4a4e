"""The hosts of one training: which hosts take part, in which order, and how their launchers connect."""
