"""Each host's part of an exchange of gradients, from the marks of a step. No TensorFlow here."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gputopo.values.run.events import HostExchange

Array = np.ndarray[Any, Any]


def host_exchanges(ranks: Sequence[int], done: Array, exchange: Array) -> tuple[HostExchange, ...]:
    """Return what each host sent and received, by rank.

    `ranks` [towers]; `done` [towers], when each tower's gradients were done; `exchange`
    [hosts, 2 hosts + 2] as of `exchange_marks`; all in seconds of one clock.
    """
    hosts = list(dict.fromkeys(ranks))
    size = len(hosts)
    sent = np.array([max(at for at, rank in zip(done, ranks, strict=True) if rank == host) for host in hosts])
    gradients, sums = exchange[:, :size], exchange[:, size : 2 * size]
    made, there = exchange[:, 2 * size], exchange[:, 2 * size + 1]
    # [destination, source]: both ways of a pair's transfers that nothing else hides.
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
