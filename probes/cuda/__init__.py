"""Copies with CUDA: the only package that imports cuda.bindings (driver API).

`open_cuda` starts CUDA, and an `Engine` runs copies on its devices. Each name loads its module when it is
used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.probes.cuda.chunking import chunks as chunks
    from gputopo.probes.cuda.chunking import fitting as fitting
    from gputopo.probes.cuda.chunking import rate_alone as rate_alone
    from gputopo.probes.cuda.chunking import rate_within as rate_within
    from gputopo.probes.cuda.door import CallLog as CallLog
    from gputopo.probes.cuda.door import Cuda as Cuda
    from gputopo.probes.cuda.door import CudaError as CudaError
    from gputopo.probes.cuda.door import NoCudaError as NoCudaError
    from gputopo.probes.cuda.engine import Engine as Engine
    from gputopo.probes.cuda.host_memory import HostMemory as HostMemory
    from gputopo.probes.cuda.kernels import PTX as PTX
    from gputopo.probes.cuda.kernels import grid as grid
    from gputopo.probes.cuda.layout import parts as parts
    from gputopo.probes.cuda.pattern import BLOCK_BYTES as BLOCK_BYTES
    from gputopo.probes.cuda.pattern import block as block
    from gputopo.probes.cuda.pattern import seed_of as seed_of
    from gputopo.probes.cuda.start import open_cuda as open_cuda
    from gputopo.probes.cuda.transfer import chain as chain
    from gputopo.probes.cuda.verify import compare as compare
    from gputopo.probes.cuda.verify import in_parts as in_parts

_MODULES = {
    "BLOCK_BYTES": "pattern",
    "CallLog": "door",
    "Cuda": "door",
    "CudaError": "door",
    "Engine": "engine",
    "HostMemory": "host_memory",
    "NoCudaError": "door",
    "PTX": "kernels",
    "block": "pattern",
    "chain": "transfer",
    "chunks": "chunking",
    "compare": "verify",
    "fitting": "chunking",
    "grid": "kernels",
    "in_parts": "verify",
    "open_cuda": "start",
    "parts": "layout",
    "rate_alone": "chunking",
    "rate_within": "chunking",
    "seed_of": "pattern",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
