"""What follows from measured throughputs: cells, scaling, ratios, observations, comparisons. Pure.

`study.study_of` is the whole; `documents` makes the published documents anew.
"""
