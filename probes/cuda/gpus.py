"""The GPUs of an engine, with the host memory and the permissions they share; which are still of use."""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from gputopo.copies.copies import Copy
from gputopo.probes.cuda.blocking import TIMED_OUT
from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.door import Cuda
from gputopo.probes.cuda.gpu import EngineGpu
from gputopo.probes.cuda.host_memory import HostMemory
from gputopo.probes.numa import NumaMemory

_TOO_MANY = "CUDA_ERROR_TOO_MANY_PEERS"
_REFUSED_PEER = "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"


class NotUsedError(CudaError):
    """The copy was not tried: one of its GPUs is no longer used, and the other is not to blame."""


class EngineGpus:
    """GPUs in use, by index in the machine. `hung`: a copy did not come back; its GPU is not used again."""

    def __init__(
        self,
        cuda: Cuda,
        ordinals: Mapping[int, int],
        pinned_bytes: int,
        nodes: int,
        memory: NumaMemory | None = None,
    ) -> None:
        devices = {device.ordinal: device for device in cuda.devices}
        self._cuda = cuda
        self.of: dict[int, EngineGpu] = {
            gpu: EngineGpu(cuda, devices[ordinal]) for gpu, ordinal in ordinals.items() if ordinal in devices
        }
        self.host = HostMemory(cuda, pinned_bytes, nodes, memory)
        self._peers = Peers(cuda)
        self.hung = False

    def close(self) -> None:
        """Release all but what is in use by a copy that did not come back."""
        if not self.hung:
            self.host.close()
        for card in self.of.values():
            if card.unusable is None or card.unusable.reason != TIMED_OUT:
                card.close(host_memory=not self.hung)

    def require(self, copy: Copy) -> None:
        """Raise CudaError where a GPU of a copy cannot be used."""
        for gpu in copy.gpus:
            card = self.of.get(gpu)
            if card is None:
                raise CudaError("CUDA_ERROR_NO_DEVICE", f"CUDA does not see GPU {gpu}")
            if card.unusable is not None:
                says = f"GPU {gpu} is no longer used: {card.unusable.says}"
                raise NotUsedError(card.unusable.reason, says)

    def blame(self, gpus: Iterable[int], error: CudaError) -> None:
        """Find the GPUs that an error leaves unusable: a copy is still in progress, or they refuse all."""
        for gpu in gpus:
            card = self.of.get(gpu)
            if card is None or card.unusable is not None:
                continue
            if error.reason == TIMED_OUT:
                self.hung = True
                card.unusable = error
                self._cuda.abandon(card.ordinal)
                self._peers.forget(card.ordinal)
                self.host.abandon()
                continue
            try:
                card.use()
                self._cuda.free_and_total()
                self._cuda.record(card.event(), card.stream(0))
            except CudaError as refused:
                card.unusable = refused
                if not self.hung:
                    self.host.forget(card.ordinal)

    def open_peers(self, copy: Copy, beside: Sequence[Copy] = ()) -> None:
        """Let the GPUs of a direct copy reach one another. Raises CudaError.

        `beside`: the copies that run at the same time, whose permissions stay.
        """
        needed = {pair for other in (copy, *beside) for pair in self._peers_of(other)[:1]}
        for place, (a, b) in enumerate(self._peers_of(copy)):
            try:
                if not self._cuda.can_reach(a, b):
                    raise CudaError(_REFUSED_PEER, "the driver allows no access from one GPU to the other")
                self._peers.open(a, b, needed if place == 0 else None)
            except CudaError:
                if place == 0:  # every direct copy in the wild opens the reverse direction too
                    raise

    def _peers_of(self, copy: Copy) -> list[tuple[int, int]]:
        """Return the permissions of a direct copy, (acts, is reached), the one that it needs first."""
        gpus = copy.gpus
        if copy.kind != "p2p_direct" or len(gpus) < 2 or not set(gpus) <= set(self.of):
            return []
        acts = copy.acting_gpu
        a, b = self.of[acts].ordinal, self.of[next(gpu for gpu in gpus if gpu != acts)].ordinal
        return [(a, b), (b, a)]


class Peers:
    """Permissions between devices, by CUDA ordinals (the one that acts, the one that is reached).

    They stay: each change of one takes the driver milliseconds. Where a device may reach no more of them
    (eight, on machines without NVSwitch), the one is taken back that was not used for longest.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._open: dict[tuple[int, int], None] = {}  # the last used last

    def forget(self, ordinal: int) -> None:
        """Leave all as it is with a device that hangs: closing would wait for it."""
        self._open = {pair: None for pair in self._open if ordinal not in pair}

    def open(self, ordinal: int, peer: int, needed: Collection[tuple[int, int]] | None) -> None:
        """Let a device reach another.

        `needed`: permissions that are not taken back for it; None: none is. Raises CudaError where the driver
        does not allow it.
        """
        pair = (ordinal, peer)
        while pair not in self._open:
            try:
                self._cuda.open_peer(ordinal, peer)
            except CudaError as error:
                oldest = None if needed is None else self._oldest(pair, needed)
                if error.reason != _TOO_MANY or oldest is None:
                    raise
                del self._open[oldest]
                with contextlib.suppress(CudaError):  # a GPU that is lost refuses that too
                    self._cuda.close_peer(*oldest)
            else:
                self._open[pair] = None
        self._open[pair] = self._open.pop(pair)

    def _oldest(self, pair: tuple[int, int], needed: Collection[tuple[int, int]]) -> tuple[int, int] | None:
        """Return the permission to take back for another: of the same device, else of the one it reaches."""
        spare = [old for old in self._open if old not in needed and not {*old}.isdisjoint(pair)]
        return min(spare, key=lambda old: old[0] != pair[0], default=None)
