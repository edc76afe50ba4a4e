"""What follows from measured throughputs: cells, scaling, ratios, observations, comparisons.

`study.study_of` returns all of it; `documents` rebuilds the published documents.
"""
