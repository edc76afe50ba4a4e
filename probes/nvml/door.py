"""The one door to NVML, through pynvml. A method answers or raises NotReadError with NVML's reason.

Nothing here changes a setting: only `Get` functions are called, and those of an event set, which is this
process's own. What drivers and pynvml do wrong is worked round in the nvml_* modules and nowhere else, each
with its symptom. The questions lie there by theme: device, load, links, fabric, errors, events.
"""

import contextlib
from collections.abc import Callable, Iterator

from gputopo.probes.nvml.calling import LOST, Handle, NotReadError
from gputopo.probes.nvml.device import DeviceQuestions
from gputopo.probes.nvml.errors import ErrorQuestions
from gputopo.probes.nvml.events import EventQuestions
from gputopo.probes.nvml.fabric import FabricQuestions
from gputopo.probes.nvml.links import LinkQuestions
from gputopo.probes.nvml.load import LoadQuestions

__all__ = ["LOST", "Handle", "NotReadError", "Nvml", "open_nvml"]


class Nvml(DeviceQuestions, LoadQuestions, LinkQuestions, FabricQuestions, ErrorQuestions, EventQuestions):
    """The questions gputopo asks NVML. Every method raises NotReadError where there is no answer.

    Made by `open_nvml`; handles are good until it closes.
    """


@contextlib.contextmanager
def open_nvml(before_call: Callable[[str, str], None] | None = None) -> Iterator[Nvml]:
    """Open NVML for the time of a `with` block. Raises NotReadError with the reason of nvmlInit.

    LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, NO_PERMISSION, LIB_RM_VERSION_MISMATCH, ...
    `before_call` gets the function and the GPUs of each call (NvmlDoor).
    """
    import pynvml  # 25 ms, and not every process needs it

    nvml = Nvml(pynvml, before_call)
    nvml.ask("nvmlInit")
    try:
        yield nvml
    finally:
        with contextlib.suppress(NotReadError):
            nvml.ask("nvmlShutdown")
