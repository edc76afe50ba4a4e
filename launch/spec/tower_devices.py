"""Which TensorFlow device a tower is, how far the variables are from it, and where they live. Pure."""

from gputopo.launch.spec.run_spec import Backend
from gputopo.planner.request import SPREAD
from gputopo.values.errors import UsageError
from gputopo.values.events import Device
from gputopo.values.machine import Gpu, Machine
from gputopo.values.plan import Candidate


def tower_device(tower: int, choice: Candidate, machine: Machine | None, backend: Backend) -> Device:
    """Give tower i's device: `/GPU:i`, the i-th of the plan's GPUs, or `/CPU:i`, which stands for that GPU.

    `machine` is the one that was planned for, None where there are no GPUs.
    """
    index = choice.gpus[tower] if choice.gpus else None
    gpu = find_gpu(machine, index)
    return Device(
        tower=tower,
        device=f"/{'GPU' if backend == 'gpu' else 'CPU'}:{tower}",
        gpu=index,
        gpu_name=None if gpu is None else gpu.name,
        hop_to_variables=_hop(tower, choice, machine),
    )


def ps_device(choice: Candidate, backend: Backend) -> str | None:
    """Give TensorFlow's device of all variables, None where there is no single one.

    Raises UsageError for variables on a GPU that is not in the plan.
    """
    if choice.ps_device in (None, SPREAD):
        return None
    if choice.ps_device == "cpu":
        return "/CPU:0"
    number = _number(choice.ps_device)
    if not choice.gpus:
        return f"/CPU:{number}"
    if number not in choice.gpus:
        raise UsageError(
            f"the variables cannot be on GPU {number}: the run takes GPUs {', '.join(map(str, choice.gpus))}",
            "give --ps one of these, or add the GPU to --gpus",
        )
    return f"/{'GPU' if backend == 'gpu' else 'CPU'}:{choice.gpus.index(number)}"


def find_gpu(machine: Machine | None, index: int | None) -> Gpu | None:
    """Give the machine's GPU of that index, None if it has none."""
    return None if machine is None else next((gpu for gpu in machine.gpus if gpu.index == index), None)


def _hop(tower: int, choice: Candidate, machine: Machine | None) -> str | None:
    """How far the variables are from a tower: the planned machine's links, also in a rehearsal."""
    if choice.ps_device is None:
        return None
    if choice.ps_device == SPREAD:
        return "spread"
    if not choice.gpus:
        return "local" if tower == (0 if choice.ps_device == "cpu" else _number(choice.ps_device)) else "host"
    if choice.ps_device == "cpu":
        return "host"
    own, holder = choice.gpus[tower], _number(choice.ps_device)
    if own == holder:
        return "local"
    link = None if machine is None else machine.link(own, holder)
    if link is None:
        return "unknown"
    if link.nvlinks:
        return f"NV{link.nvlinks}"
    return "unknown" if link.hop is None else link.hop.value


def _number(place: str | None) -> int:
    assert place is not None
    return int(place.removeprefix("gpu:"))
