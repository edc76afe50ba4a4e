"""Verdicts on the devices of a run (slow, even to within N %, cannot tell), in bounded memory.

`paces` and `sampled` add up the events of a run; `peers` compares devices of one kind, `changes` finds where
a series changed, `hosts` compares hosts, `cost` replays steps, `causes` explains by `rules`; `judge` combines
them into verdicts.
"""
