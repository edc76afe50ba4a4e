"""`gputopo bandwidth --allreduce`: the devices to reduce over, and the result as a bandwidth."""

import os
import time
from typing import TYPE_CHECKING

from gputopo.cli.printing import tell
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import HardwareError, UsageError

if TYPE_CHECKING:
    from gputopo.cli.bandwidth.options import Wish
    from gputopo.values.machine import Machine


def measure_reduction(wish: "Wish", machine: "Machine") -> Bandwidth:
    """Time the reduction over the chosen GPUs, or over CPU devices where there is no GPU, which is said.

    Raises HardwareError for an NVIDIA device whose driver does not work, UsageError for fewer than two
    devices or a method that there is not.
    """
    from gputopo.launch.jobs.reduction import bench
    from gputopo.topology.reduction_groups import reduction_groups

    gpus = _gpus(wish, machine)
    assert wish.model is not None
    began = time.time()
    groups = () if gpus is None else reduction_groups(machine, gpus)
    times = bench.measure(wish.model, gpus, methods=wish.methods, groups=groups, progress=_say)
    where = () if gpus is not None else ("No NVIDIA device: the reduction was timed on CPU devices.",)
    return Bandwidth(
        source="live",
        samples=times.samples,
        failures=times.failures,
        not_measured=times.not_measured,
        complete=times.complete,
        measured_at=began,
        duration_s=time.time() - began,
        driver_version=machine.driver.version,
        cuda_version=machine.driver.cuda_version,
        notes=(*where, *times.notes, *_fixed(times.fixed_cost_us)),
    )


def _gpus(wish: "Wish", machine: "Machine") -> tuple[int, ...] | None:
    """Give the GPUs to use: those asked for, else all that answer and that this process may see."""
    from gputopo.findings import driver_broken
    from gputopo.launch.spec.env import narrowed

    broken = driver_broken(machine)
    if broken is not None:
        raise HardwareError(broken.says, broken.remedy or "gputopo inspect tells more")
    there = tuple(gpu.index for gpu in narrowed(os.environ, machine).gpus if not gpu.lost)
    if wish.gpus is None:
        return there or None
    missing = [index for index in wish.gpus if index not in there]
    if missing:
        raise UsageError(
            f"--gpus names GPU {missing[0]}, which cannot be used here",
            "gputopo inspect shows the GPUs; CUDA_VISIBLE_DEVICES may hide some",
        )
    return wish.gpus


def _fixed(cost_us: dict[str, float]) -> tuple[str, ...]:
    if not cost_us:
        return ()
    told = ", ".join(f"{name} {us / 1000:.2f} ms" for name, us in cost_us.items())
    return (f"A call that reduces nothing takes: {told}. It is in the times above.",)


def _say(method: str, number: int, count: int) -> None:
    tell(f"gputopo: reduction {number + 1} of {count}: {method}\n")
