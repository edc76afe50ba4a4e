"""Seconds for which a byte of a model occupies the slowest link, by set of GPUs: as `flows`, but fast. Pure.

Every number that depends on one or two GPUs is looked up. Sets are tuples of GPUs; `mask` has the bit
1 << gpu for each of them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.prediction.links.flows import GB, Resource
from gputopo.prediction.links.paths import Paths
from gputopo.prediction.links.shared_links import SocketLink, Uplink


class Rates(NamedTuple):
    """Seconds a byte of the slowest link while weights flow, and while gradients do."""

    weights: float
    gradients: float


class Shared:
    """A link that several pairs share, in both directions: an uplink, or the link between two sockets.

    `up`, `down`: seconds a byte; `more`: by how much both at once take longer, as a share of the shorter.
    `goes_up` has of each sender the receivers whose bytes go up, `comes_down` those whose bytes come down;
    `up_to` and `down_to` have of each receiver the senders. `group`: GPUs on one side of it; `members`: GPUs
    whose copies with the host use it.
    """

    def __init__(
        self, up: float, down: float, both: float, group: int, members: int, upward: Resource
    ) -> None:
        self.up, self.down, self.more = 1 / (up * GB), 1 / (down * GB), 1 / both - 1
        self.group, self.members = group, members
        self.upward = upward
        self.goes_up: dict[int, int] = {}
        self.comes_down: dict[int, int] = {}
        self.up_to: dict[int, int] = {}
        self.down_to: dict[int, int] = {}
        # What a ring that goes up and comes down once is slowed to.
        self.round = max(self.up, self.down) + self.more * min(self.up, self.down)

    def add(self, a: int, b: int, *, up: bool, down: bool) -> None:
        """Note which directions the bytes from one GPU to another use."""
        if up:
            self.goes_up[a] = self.goes_up.get(a, 0) | 1 << b
            self.up_to[b] = self.up_to.get(b, 0) | 1 << a
        if down:
            self.comes_down[a] = self.comes_down.get(a, 0) | 1 << b
            self.down_to[b] = self.down_to.get(b, 0) | 1 << a

    def seconds(self, up: float, down: float) -> float:
        """Return what the busier direction takes for so many parts up and down."""
        one, other = self.up * up, self.down * down
        return one + self.more * other if one > other else other + self.more * one


class RateTable:
    """The rates of all sets of a pool of GPUs."""

    def __init__(self, paths: Paths, pool: Sequence[int]) -> None:
        self.pool = tuple(pool)
        self.up = {gpu: 1 / (paths.hosts[gpu].up * GB) for gpu in pool}
        self.down = {gpu: 1 / (paths.hosts[gpu].down * GB) for gpu in pool}
        self.more = {gpu: 1 / paths.hosts[gpu].both - 1 for gpu in pool}
        # Seconds a byte from a to b: of the sender's link, out[a][b]; of the receiver's, into[b][a]; of what
        # lies between alone, via[a][b]; of the NVLinks to switches, port_out[a][b] and port_in[b][a].
        self.out: dict[int, dict[int, float]] = {a: dict.fromkeys(pool, 0.0) for a in pool}
        self.into: dict[int, dict[int, float]] = {a: dict.fromkeys(pool, 0.0) for a in pool}
        self.via: dict[int, dict[int, float]] = {a: dict.fromkeys(pool, 0.0) for a in pool}
        self.port_out: dict[int, dict[int, float]] = {a: dict.fromkeys(pool, 0.0) for a in pool}
        self.port_in: dict[int, dict[int, float]] = {a: dict.fromkeys(pool, 0.0) for a in pool}
        self.pair_more = {(a, b): 1 / paths.pair(a, b).both - 1 for a in pool for b in pool if a != b}
        self.over_nvlink = {
            (a, b) for a in pool for b in pool if a != b and paths.pair(a, b).kind == "nvlink"
        }
        self.staged = {(a, b) for a in pool for b in pool if a != b and paths.pair(a, b).kind == "staged"}
        self.ports = set(paths.ports) & set(pool)
        self._shared = {number: _of_uplink(number, one) for number, one in enumerate(paths.uplinks)}
        self._sockets = [_of_socket(one) for one in paths.sockets]
        self.shared = (*self._shared.values(), *self._sockets)
        self.port_more = {gpu: 1 / paths.port_both(gpu) - 1 for gpu in pool}
        for a in pool:
            for b in pool:
                if a != b:
                    self._add(paths, a, b)
        self._uniform_out = {a: _uniform(self.out[a], a) for a in pool}
        self._uniform_into = {a: _uniform(self.into[a], a) for a in pool}
        # Pairs by how long both directions at once take on what lies between, the slowest first.
        self._slow_pairs = sorted(
            (
                (_both(self.via[a][b], self.via[b][a], self.pair_more[a, b]), 1 << a | 1 << b)
                for a in pool
                for b in pool
                if a < b and (self.via[a][b] or self.via[b][a])
            ),
            reverse=True,
        )

    def _add(self, paths: Paths, a: int, b: int) -> None:
        path = paths.pair(a, b)
        rate = path.gb_per_s * GB
        if path.kind == "nvlink":
            self.via[a][b] = 1 / rate
            if a in paths.ports and b in paths.ports:
                self.port_out[a][b] = 1 / max(paths.ports[a] * GB, rate)
                self.port_in[b][a] = 1 / max(paths.ports[b] * GB, rate)
            return
        up, down = paths.hosts[a].up * GB, paths.hosts[b].down * GB
        self.out[a][b], self.into[b][a] = 1 / max(up, rate), 1 / max(down, rate)
        self.via[a][b] = 1 / rate
        staged = path.through_host
        for uplink, shared in zip(paths.uplinks, self._shared.values(), strict=True):
            leaves, enters = a in uplink.gpus, b in uplink.gpus
            shared.add(a, b, up=leaves and (staged or not enters), down=enters and (staged or not leaves))
        for socket, shared in zip(paths.sockets, self._sockets, strict=True):
            here, there = socket.gpus
            shared.add(a, b, up=a in here and b in there, down=a in there and b in here)

    def with_host(self, gpus: Sequence[int], mask: int) -> Rates:
        """Return the rates where every GPU has weights from the host and gradients to it."""
        weights, gradients = max(map(self.down.__getitem__, gpus)), max(map(self.up.__getitem__, gpus))
        for shared in self.shared:
            if among := (shared.members & mask).bit_count():
                weights, gradients = max(weights, shared.down * among), max(gradients, shared.up * among)
        return Rates(weights, gradients)

    def with_owner(self, owner: int, gpus: Sequence[int], mask: int) -> Rates:
        """Return the rates where one GPU of the set has the variables."""
        out, into, via = self.out[owner], self.into[owner], self.via[owner]
        weights, gradients = sum(map(out.__getitem__, gpus)), sum(map(into.__getitem__, gpus))
        for gpu in gpus:
            other_in, other_out, other_via = self.into[gpu][owner], self.out[gpu][owner], self.via[gpu][owner]
            there = via[gpu]
            if other_in > weights:
                weights = other_in
            if there > weights:
                weights = there
            if other_out > gradients:
                gradients = other_out
            if other_via > gradients:
                gradients = other_via
        if self.ports:
            weights = max(weights, sum(map(self.port_out[owner].__getitem__, gpus)))
            gradients = max(gradients, sum(map(self.port_in[owner].__getitem__, gpus)))
        for shared in self.shared:
            up = (shared.goes_up.get(owner, 0) & mask).bit_count()
            down = (shared.comes_down.get(owner, 0) & mask).bit_count()
            if up or down:
                weights = max(weights, shared.seconds(up, down))
            up = (shared.up_to.get(owner, 0) & mask).bit_count()
            down = (shared.down_to.get(owner, 0) & mask).bit_count()
            if up or down:
                gradients = max(gradients, shared.seconds(up, down))
        return Rates(weights, gradients)

    def spread(self, gpus: Sequence[int], mask: int) -> Rates:
        """Return the rates where each GPU of the set has as much of the variables as any other."""
        others = len(gpus) - 1
        slowest = next((seconds for seconds, pair in self._slow_pairs if pair & mask == pair), 0.0)
        for gpu in gpus:
            out = self._uniform_out[gpu]
            sent = out * others if out is not None else sum(map(self.out[gpu].__getitem__, gpus))
            into = self._uniform_into[gpu]
            received = into * others if into is not None else sum(map(self.into[gpu].__getitem__, gpus))
            busy = _both(sent, received, self.more[gpu])
            if busy > slowest:
                slowest = busy
        if self.ports:
            slowest = max(slowest, *(self._port(gpu, gpus) for gpu in gpus))
        for shared in self.shared:
            up, down = _crossing(shared, gpus, mask)
            if up or down:
                slowest = max(slowest, shared.seconds(up, down))
        share = slowest / len(gpus)
        return Rates(share, share)

    def _port(self, gpu: int, gpus: Sequence[int]) -> float:
        """Return what the NVLinks of a GPU to switches take where it sends to all and receives from all."""
        return _both(
            sum(map(self.port_out[gpu].__getitem__, gpus)),
            sum(map(self.port_in[gpu].__getitem__, gpus)),
            self.port_more[gpu],
        )


def _of_uplink(number: int, uplink: Uplink) -> Shared:
    group = sum(1 << gpu for gpu in uplink.gpus)
    return Shared(uplink.up, uplink.down, uplink.both, group, group, ("uplink up", number))


def _of_socket(socket: SocketLink) -> Shared:
    group = sum(1 << gpu for gpu in socket.gpus[0])
    return Shared(socket.gb_per_s, socket.gb_per_s, socket.both, group, 0, ("socket", *socket.nodes))


def _crossing(shared: Shared, gpus: Sequence[int], mask: int) -> tuple[int, int]:
    """Return how many pairs of a set go up a shared link, and how many come down."""
    goes, comes = shared.goes_up, shared.comes_down
    up = down = 0
    for gpu in gpus:
        if gpu in goes:
            up += (goes[gpu] & mask).bit_count()
        if gpu in comes:
            down += (comes[gpu] & mask).bit_count()
    return up, down


def _uniform(row: Mapping[int, float], own: int) -> float | None:
    """Return the number that a GPU has for all others, None where they differ."""
    found = {seconds for gpu, seconds in row.items() if gpu != own}
    return found.pop() if len(found) == 1 else None


def _both(one: float, other: float, more: float) -> float:
    """Return what a link is occupied in its busier direction, given what is sent in both at once."""
    return one + more * other if one > other else other + more * one
