"""`gputopo.launch.strategy`: the tf.distribute strategy of the plan, for the user's own script."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputopo.launch.jobs.claims import claimed_by_others, claims_folder
from gputopo.launch.script.nearest import Nearest, nearest
from gputopo.launch.spec.env import ALLOW_GROWTH
from gputopo.launch.spec.prepare import ps_device
from gputopo.launch.spec.target import Target, target_of
from gputopo.planner import Request
from gputopo.planner.available import visible_gpus
from gputopo.planner.cpu_devices import counted_devices
from gputopo.values.errors import GputopoError, HardwareError, UsageError
from gputopo.values.machine import Machine

if TYPE_CHECKING:
    import tensorflow as tf

_HOST = "/CPU:0"
_FIRST = "call gputopo.launch.strategy before anything that uses a device: tensors, variables, models, data"


def strategy(
    model: str | None = None,
    *,
    num_gpus: int | None = None,
    gpus: Sequence[int] | None = None,
    prefer_pix: bool = False,
) -> "tf.distribute.Strategy":
    """Plan for the GPUs that this process may use, and return the tf.distribute strategy of the plan.

    `model`: a name of `gputopo models`, whose sizes decide how gradients travel; None: the distances alone.
    `num_gpus`, `gpus`, `prefer_pix`: as of `gputopo plan`. Without the first two all GPUs are used, and where
    CUDA_VISIBLE_DEVICES is set, as under `gputopo run -- python train.py`, those that it leaves, in order.
    Without GPUs it is logical CPU devices, `num_gpus` of them.

    Sets CUDA_VISIBLE_DEVICES of this process, memory growth and logical devices, and prints in two lines on
    stderr what was chosen and why. GPUs are not claimed: under `gputopo run` they are.

    Raises UsageError, NoPlanError and HardwareError as `gputopo run` ends with them, each with `what` and
    `hint`; UsageError if TensorFlow has used a device already.
    """
    try:
        target = planned(_machine(), os.environ, model, num_gpus=num_gpus, gpus=gpus, prefer_pix=prefer_pix)
        return _made(target)
    except GputopoError as error:
        error.add_note(error.hint)  # a traceback shows it
        raise


def planned(
    machine: Machine,
    environ: Mapping[str, str],
    model: str | None = None,
    *,
    num_gpus: int | None = None,
    gpus: Sequence[int] | None = None,
    prefer_pix: bool = False,
    claimed: Mapping[int, str] | None = None,
) -> Target:
    """Return what `strategy` plans for on a machine. `claimed`: None asks which GPUs others have claimed."""
    exact = None if gpus is None else tuple(gpus)
    if num_gpus is None and exact is None and not prefer_pix:
        exact = visible_gpus(environ, machine) or None
    if claimed is None:
        claimed = claimed_by_others(machine, claims_folder(environ))
    request = Request(model=model, num_gpus=num_gpus, gpus=exact, prefer_pix=prefer_pix)
    return target_of(machine, request, environ=environ, claimed=claimed)


def lines_of(target: Target, found: Nearest) -> tuple[str, str]:
    """Return what was chosen, and why."""
    choice = target.plan.choice
    if target.backend == "cpu":
        where = f"{counted_devices(target.cpu_devices)} ({target.why_cpu})"
    else:
        where = f"GPU{'s' if len(choice.gpus) > 1 else ''} {', '.join(map(str, choice.gpus))}"
    why = "; ".join(choice.reasons[:2]) or "the only one there is"
    if found.lacks is not None:
        why += f"; tf.distribute lacks {found.lacks}, and this is the nearest"
    return f"gputopo: {found.words} on {where}.", f"gputopo: why: {why}."


def _machine() -> Machine:
    from gputopo.probes import collect
    from gputopo.runs import history

    with collect.begin(Path(os.environ.get("GPUTOPO_ROOT") or "/")) as read:
        machine = read()
    if len(machine.gpus) > 1 and machine.bandwidth is None:
        with contextlib.suppress(GputopoError):  # the plan is of the distances then
            saved = history.latest(history.history_file(), machine)
            if saved is not None:
                import msgspec

                machine = msgspec.structs.replace(machine, bandwidth=saved.bandwidth)
    return machine


def _made(target: Target) -> "tf.distribute.Strategy":
    """Make the devices and the strategy."""
    choice, backend = target.plan.choice, target.backend
    count = len(choice.gpus) or target.cpu_devices
    found = nearest(choice, backend, count)
    os.environ.update(target.plan.environment)
    import tensorflow as tf

    try:
        _set_up(tf, target, count)
    except RuntimeError as error:  # TensorFlow's word for devices that are in use
        raise UsageError("TensorFlow has made its devices already", _FIRST) from error
    from gputopo.launch.compare.strategies import strategy_of

    devices = [f"/{backend.upper()}:{number}" for number in range(count)]
    made = strategy_of(found.strategy, devices, ps_device(choice, backend) or _HOST)
    for line in lines_of(target, found):
        print(line, file=sys.stderr)
    return made


def _set_up(tf: Any, target: Target, count: int) -> None:
    """Make the logical devices. Raises RuntimeError if TensorFlow's runtime has begun."""
    if target.backend == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        return
    found = tf.config.list_physical_devices("GPU")
    if len(found) != count:
        raise HardwareError(
            f"TensorFlow sees {len(found)} GPUs, the plan has {count}",
            f"install its GPU build (pip install 'gputopo[cuda]'), and {_FIRST}",
        )
    for gpu in found:
        if ALLOW_GROWTH not in os.environ:
            tf.config.experimental.set_memory_growth(gpu, True)
    # Begins the runtime now, so that no later setting changes what was planned.
    tf.config.list_logical_devices("GPU")
