"""The time marks of several hosts: their clocks, and each host's part of an exchange. No TensorFlow here."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gputopo.values.run.events import Device, HostExchange

Array = np.ndarray[Any, Any]


class HostClocks:
    """Converts the marks of several hosts from their own clocks to rank 0's clock.

    A host's first tower starts after rank 0 has read the start time of the step. The smallest delay between
    the two so far is taken as the difference of the clocks. It includes the minimum network latency, so that
    marks do not show this latency.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices
        self._ranks = np.array([device.rank for device in devices])
        self._hosts = list(dict.fromkeys(self._ranks.tolist()))
        self._least = dict.fromkeys({*self._hosts} - {0}, math.inf)

    def since(self, begin: Array, marks: Array) -> Array:
        """Return marks [towers, 3] in seconds since `begin`, the start of the step on rank 0's clock."""
        since: Array = marks - begin
        for rank, least in self._least.items():
            towers = self._ranks == rank
            self._least[rank] = min(least, float(since[towers].min()))
            since[towers] -= self._least[rank]
        return since

    def exchanges(self, begin: Array, since: Array, rows: Array) -> tuple[HostExchange, ...]:
        """Return each host's exchange times. `since`: the step's marks; `rows`: from `HostMarks.exchange`."""
        apart = np.array([self._least.get(rank, 0.0) for rank in self._hosts])
        return host_exchanges(self._ranks.tolist(), since[:, 2], rows - begin - apart[:, None])


def host_exchanges(ranks: Sequence[int], done: Array, exchange: Array) -> tuple[HostExchange, ...]:
    """Return each host's exchange times (sending, receiving, sums), in the order of ranks.

    `ranks` [towers]; `done` [towers]: when each tower's gradients were done; `exchange` [hosts, 2 hosts + 2]:
    from `HostMarks.exchange`. All times are in seconds of one clock.
    """
    hosts = list(dict.fromkeys(ranks))
    size = len(hosts)
    sent = np.array([max(at for at, rank in zip(done, ranks, strict=True) if rank == host) for host in hosts])
    gradients, sums = exchange[:, :size], exchange[:, size : 2 * size]
    made, there = exchange[:, 2 * size], exchange[:, 2 * size + 1]
    # [destination, source]: seconds of a pair's transfers that do not overlap with computing.
    late = np.nansum([np.maximum(gradients - sent, 0.0), np.maximum(sums - made, 0.0)], axis=0)
    late[np.isnan(gradients) & np.isnan(sums)] = np.nan
    until = np.maximum(there - done.max(), 0.0)
    return tuple(
        HostExchange(
            rank=rank,
            sends_s=_least(late[:, place]),
            receives_s=_least(late[place]),
            sums_s=_least(until[place : place + 1]),
        )
        for place, rank in enumerate(hosts)
    )


def _least(values: Array) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.min()) if known.size else None
