"""Asks NVML. `door` makes the calls, and `questions` is the table of calls.

`ask_all` reads everything once, `NvmlReading` in a child process. A `GpuWatch` samples GPUs over time, and so
does a `GpuWatchChild`. Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.probes.nvml.door import open_nvml as open_nvml
    from gputopo.probes.nvml.gpu_watch import AT_ONCE as AT_ONCE
    from gputopo.probes.nvml.gpu_watch import CLOCKS as CLOCKS
    from gputopo.probes.nvml.gpu_watch import GpuWatch as GpuWatch
    from gputopo.probes.nvml.gpu_watch import GpuWatchChild as GpuWatchChild
    from gputopo.probes.nvml.monitor import Monitor as Monitor
    from gputopo.probes.nvml.reading import NvmlAnswers as NvmlAnswers
    from gputopo.probes.nvml.reading import NvmlReading as NvmlReading
    from gputopo.probes.nvml.reading import Received as Received
    from gputopo.probes.nvml.reading import ask_all as ask_all

_MODULES = {
    "AT_ONCE": "gpu_watch",
    "CLOCKS": "gpu_watch",
    "GpuWatch": "gpu_watch",
    "GpuWatchChild": "gpu_watch",
    "Monitor": "monitor",
    "NvmlAnswers": "reading",
    "NvmlReading": "reading",
    "Received": "reading",
    "ask_all": "reading",
    "open_nvml": "door",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
