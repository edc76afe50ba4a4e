"""What the short runs of a screen show. Pure.

`order` has the order of the runs; `rows` the verdict on each device; `causes` why one is slow; `changes` what
is different from the last screen.
"""
