"""Predicts the seconds of a training step on a set of GPUs, with the variables in a place: pure.

`programs` has the constants of the program that trains; `line` is the order in which gradients leave;
`links` has the seconds that a byte takes between any two places of a machine, and the bytes that a candidate
sends over each of them; `step` adds them up, and `timeline` lays them out in time. `speeds` has
the images/sec of one GPU alone. `fit` finds the constants from published figures; `calibration` adjusts them
to one box by its runs.
"""
