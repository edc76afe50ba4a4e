"""The kernels of `ptx`, loaded and launched, through the door."""

import ctypes
from collections.abc import Mapping
from typing import Any

from gputopo.probes.cuda.calling import CudaCalls, Kernel, Stream
from gputopo.probes.cuda.ptx import KERNELS, PTX

_BLOCK = 512  # threads of a block, as nvbandwidth's copy kernel has
_BLOCKS_PER_MULTIPROCESSOR = 2  # 1024 threads are resident on every chip since Maxwell


class KernelCalls(CudaCalls):
    """Kernels of the device that is current."""

    def load_kernels(self) -> tuple[Any, Mapping[str, Kernel]]:
        """Give the module of the current device and its kernels by name. Raises CudaError."""
        module = self.ask("cuModuleLoadData", PTX.encode() + b"\0")
        return module, {
            name: Kernel(self.ask("cuModuleGetFunction", module, name.encode())) for name in KERNELS
        }

    def unload_kernels(self, module: Any) -> None:
        """Give a module back."""
        self.ask("cuModuleUnload", module)

    def launch(
        self, kernel: Kernel, stream: Stream, words: tuple[int, ...], threads: tuple[int, int]
    ) -> None:
        """Run a kernel whose parameters are 64-bit words, on (blocks, threads of each)."""
        blocks, block = threads
        parameters = (words, (ctypes.c_uint64,) * len(words))
        self.ask("cuLaunchKernel", kernel, blocks, 1, 1, block, 1, 1, 0, stream, parameters, 0)


def grid(multiprocessors: int, words: int) -> tuple[int, int]:
    """Give (blocks, threads of each) that fill the chip, no more than there are words."""
    wanted = -(-words // _BLOCK)
    return max(1, min(wanted, multiprocessors * _BLOCKS_PER_MULTIPROCESSOR)), _BLOCK
