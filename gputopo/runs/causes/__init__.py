"""Why a device is slow: causes in the samples of the same seconds, each with its share of the gap. Pure.

`facts` adds up the samples step by step, row by row like the paces; `rules` declares the causes; `fit` finds
how the pace varied with a fact; `explain` shares the gap out; `words` writes the sentences.
"""
