"""Peer access of the pairs of GPUs: NVML's own states, and why it is off, each once for all its pairs."""

from gputopo.report.layout import Line, labelled, plain
from gputopo.topology.hops import links_by_pair
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Machine

_PAIRS_SHOWN = 12


def peers_view(machine: Machine, width: int) -> list[Line]:
    """Give one row for each state of peer access; empty where nothing is told of it."""
    return labelled(peer_rows(machine), width)


def peer_rows(machine: Machine) -> list[tuple[str, str]]:
    """Give rows of (label, words): the state of reading and writing, the pairs, the reason."""
    states: dict[tuple[str, str], list[tuple[int, int]]] = {}
    links = links_by_pair(machine)
    for pair, link in links.items():
        if link.p2p_read is not None or link.p2p_write is not None:
            state = _state(link.p2p_read, link.p2p_write)
            states.setdefault((state, link.p2p_reason or ""), []).append(pair)
    rows: list[tuple[str, str]] = []
    for (state, reason), pairs in states.items():
        of = "all pairs" if len(pairs) == len(links) > 1 else pairs_in_words(pairs, most=_PAIRS_SHOWN)
        words = f"{state}: {of}{f' ({reason})' if reason else ''}"
        rows.append(("" if rows else "Peer access", plain(words)))
    return rows


def _state(read: str | None, write: str | None) -> str:
    if read == write or write is None or read is None:
        return f"{read or write}{'' if read and write else ' (read)' if read else ' (write)'}"
    return f"read {read}, write {write}"
