"""Times the reduction of a model's gradients on this machine, on chosen GPUs or on CPU devices."""

import os
import time

from gputopo.findings import driver_broken, support_of
from gputopo.launch.jobs import reduction_bench
from gputopo.launch.site import gpus_without_tensorflow
from gputopo.planner import hidden_gpus, plan_environment
from gputopo.report import to_stderr
from gputopo.topology import reduction_groups
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.machine import Machine


def measure_on(machine: Machine, model: str, method: str | None, chosen: tuple[int, ...] | None) -> Bandwidth:
    """Time the reduction over the chosen GPUs, or over CPU devices if there is no GPU.

    Raises HardwareError for an NVIDIA device whose driver does not work, and UsageError for fewer than two
    devices or an unknown method.
    """
    gpus = _gpus(chosen, machine)
    began = time.time()
    compiles = gpus is not None and any(support_of(machine, machine.gpus[gpu]).compiles for gpu in gpus)
    groups = () if gpus is None else reduction_groups(machine, gpus)
    times = reduction_bench.measure(
        model,
        gpus,
        methods=None if method is None else (method,),
        visible=None if gpus is None else plan_environment(machine, gpus),
        groups=groups,
        compiles=compiles,
        progress=lambda method, number, count: to_stderr(
            f"gputopo: reduction {number + 1} of {count}: {method}\n"
        ),
    )
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
        notes=(*where, *times.notes, *_fixed_cost(times.fixed_cost_us)),
    )


def _gpus(chosen: tuple[int, ...] | None, machine: Machine) -> tuple[int, ...] | None:
    """Return the chosen GPUs, else all GPUs that respond and that this process may see."""
    broken = driver_broken(machine)
    if broken is not None:
        raise HardwareError(broken.says, broken.remedy or "gputopo inspect shows more")
    hidden = hidden_gpus(os.environ, machine)
    unusable = gpus_without_tensorflow(machine, os.environ) if machine.gpus else {}
    there = tuple(gpu.index for gpu in machine.gpus if not gpu.lost and gpu.index not in {*hidden, *unusable})
    if chosen is None:
        return there or None
    missing = [index for index in chosen if index not in there]
    if missing:
        raise UsageError(
            f"--gpus lists GPU {missing[0]}, which cannot be used here",
            "gputopo inspect shows the GPUs; CUDA_VISIBLE_DEVICES may hide some",
        )
    return chosen


def _fixed_cost(cost_us: dict[str, float]) -> tuple[str, ...]:
    if not cost_us:
        return ()
    costs = ", ".join(f"{name} {us / 1000:.2f} ms" for name, us in cost_us.items())
    return (f"Overhead of a call, included in the times above: {costs}.",)
