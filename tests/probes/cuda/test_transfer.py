"""The chain of pointers."""

from gputopo.probes.cuda.gpu import CHAIN_BYTES
from gputopo.probes.cuda.transfer import chain


def test_a_chain_comes_by_every_line_once_before_it_begins_again() -> None:
    base = 0x7F0000000000
    words = chain(base)
    assert len(words) * 8 == CHAIN_BYTES
    at, seen = base, set[int]()
    while at not in seen:
        seen.add(at)
        assert (at - base) % 128 == 0
        at = words[(at - base) // 8]
    assert len(seen) == CHAIN_BYTES // 128


def test_a_chain_does_not_go_straight_on() -> None:
    words = chain(0)
    steps = {(words[place // 8] - place) % CHAIN_BYTES for place in range(0, CHAIN_BYTES, 128)}
    assert len(steps) > CHAIN_BYTES // 128 / 4  # a prefetcher would see one
