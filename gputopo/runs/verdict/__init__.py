"""Verdicts on the devices of a run: slow, even to within N %, or cannot tell. Pure, and in bounded memory.

`paces` takes the events of a run one by one and keeps what the comparisons need; `peers` compares devices of
one kind, `past` finds where a run changed, `expected` compares with other runs or published figures, `host`
sums up the load of the host, `cost` replays steps. `judge` makes the verdicts of all of them; `words` writes
the sentences.
"""
