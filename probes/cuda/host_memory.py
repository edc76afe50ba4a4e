"""Host memory for copies: page-locked or pageable, one area for sending and one for receiving."""

import ctypes
import mmap
from typing import Protocol

from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.door import Cuda
from gputopo.probes.cuda.pattern import BLOCK_BYTES

# Of each half. Eight GPUs: 512 MiB page-locked, and as much pageable where that is measured.
HALF_BYTES = 32 * 2**20


class HostArea(Protocol):
    """Two halves of `room` bytes each."""

    send: int
    receive: int
    room: int

    def close(self) -> None:
        """Give the memory back. Raises CudaError."""


class PinnedArea:
    """Page-locked memory; smaller where the system refuses so much. Raises CudaError if it refuses all."""

    def __init__(self, cuda: Cuda, wanted: int = HALF_BYTES) -> None:
        self._cuda = cuda
        self.room = wanted
        while True:
            try:
                self.send = cuda.allocate_host(2 * self.room)
                break
            except CudaError as error:
                if error.reason != "CUDA_ERROR_OUT_OF_MEMORY" or self.room // 2 < BLOCK_BYTES:
                    raise
                self.room //= 2
        self.receive = self.send + self.room

    def close(self) -> None:
        """Give the memory back. Raises CudaError."""
        self._cuda.release_host(self.send)


class PageableArea:
    """Memory as any program has it."""

    def __init__(self, wanted: int = HALF_BYTES) -> None:
        self._map = mmap.mmap(-1, 2 * wanted)
        self._bytes = ctypes.c_char.from_buffer(self._map)
        self.room = wanted
        self.send = ctypes.addressof(self._bytes)
        self.receive = self.send + wanted

    def close(self) -> None:
        """Give the memory back."""
        del self._bytes
        self._map.close()
