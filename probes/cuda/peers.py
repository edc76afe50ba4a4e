"""Which GPUs may reach one another's memory now: only what the present copies need."""

import contextlib
from collections.abc import Set

from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.door import Cuda


class Peers:
    """Permissions between devices, by CUDA ordinals (the one that acts, the one that is reached).

    They are taken back when copies come that do not need them: while one is open, the driver takes the direct
    way by itself, and older cards have room for eight only.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._open: set[tuple[int, int]] = set()

    def keep(self, wanted: Set[tuple[int, int]]) -> None:
        """Close all that are not wanted."""
        for ordinal, peer in self._open - wanted:
            with contextlib.suppress(CudaError):  # a GPU that is lost refuses that too
                self._cuda.close_peer(ordinal, peer)
        self._open &= wanted

    def forget(self, ordinal: int) -> None:
        """Leave all as it is with a device that hangs: closing would wait for it."""
        self._open = {pair for pair in self._open if ordinal not in pair}

    def open(self, ordinal: int, peer: int) -> None:
        """Let a device reach another. Raises CudaError where the driver does not allow it."""
        if (ordinal, peer) not in self._open:
            self._cuda.open_peer(ordinal, peer)
            self._open.add((ordinal, peer))
