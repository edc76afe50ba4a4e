"""`gputopo.launch.strategy`: the tf.distribute strategy of the plan, for the user's own script."""

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputopo.launch.hosts import starters
from gputopo.launch.jobs.before import measured_before
from gputopo.launch.jobs.claims import choose_and_claim
from gputopo.launch.script.devices import FIRST, require_gpus, where_words
from gputopo.launch.script.nearest import Nearest, nearest
from gputopo.launch.script.sized import NO_MODEL, Sized, is_built, sized
from gputopo.launch.script.workers import made_with_workers
from gputopo.launch.spec.prepare import ps_device
from gputopo.launch.spec.target import Target, target_of
from gputopo.planner import Request
from gputopo.planner.available import visible_gpus
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.machine import Machine

if TYPE_CHECKING:
    import tensorflow as tf

_HOST = "/CPU:0"
_BUILT = "give the function that builds the model, not the model, and build it within strategy.scope()"


def strategy(
    model: object = None,
    *,
    num_gpus: int | None = None,
    gpus: Sequence[int] | None = None,
    prefer_pix: bool = False,
    claim: bool = True,
    history: bool = True,
) -> "tf.distribute.Strategy":
    """Plan for the GPUs that this process may use, and return the tf.distribute strategy of the plan.

    `model`: decides how gradients travel. A name of `gputopo models`, `keras:NAME`, `module:function`; the
    function that builds a Keras model, which is called once in a child process to count what it costs; a
    number of parameters; or a Keras model, where TensorFlow has its devices already, as under `gputopo run`.
    None: the distances alone.
    `num_gpus`, `gpus`, `prefer_pix`: as of `gputopo plan`. Without the first two all GPUs are used, and where
    CUDA_VISIBLE_DEVICES is set, as under `gputopo run -- python train.py`, those that it leaves, in order.
    Without GPUs it is logical CPU devices, `num_gpus` of them. `claim`: claim the GPUs until this process
    ends, so that runs of gputopo leave them out; those that `gputopo run` claimed for it are its own.
    `history`: earlier runs of this box count, as in `gputopo plan`.

    Where TF_CONFIG has several workers, as under `gputopo run` on several hosts, it is
    MultiWorkerMirroredStrategy with the plan's devices of this host.

    Sets CUDA_VISIBLE_DEVICES of this process, memory growth and logical devices, and prints in two lines on
    stderr what was chosen and why.

    Raises UsageError, NoPlanError and HardwareError as `gputopo run` ends with them, each with `what` and
    `hint`; UsageError if TensorFlow has used a device already, other than those that were planned.
    """
    try:
        return _planned_and_made(model, num_gpus, gpus, prefer_pix, claim=claim, history=history)
    except GputopoError as error:
        error.add_note(error.hint)  # a traceback shows it
        raise


def _planned_and_made(
    model: object,
    num_gpus: int | None,
    gpus: Sequence[int] | None,
    prefer_pix: bool,
    *,
    claim: bool,
    history: bool,
) -> "tf.distribute.Strategy":
    workers = starters.tf_config(os.environ)
    if workers is not None and is_built(model):
        raise UsageError("the model is built already, and workers are joined before", _BUILT)
    found = sized(model, os.environ)
    machine = _machine()

    def choose(others: Mapping[int, str]) -> Target:
        return planned(
            machine,
            os.environ,
            found,
            num_gpus=num_gpus,
            gpus=gpus,
            prefer_pix=prefer_pix,
            claimed=others,
            history=history,
        )

    claims = contextlib.ExitStack()
    atexit.register(claims.close)
    target = choose_and_claim(
        machine, choose, claims if claim else None, os.environ, "gputopo.launch.strategy", on_problem=_warn
    )
    try:
        if workers is not None:
            return made_with_workers(target, workers, found.says, asked=num_gpus)
        return _made(target, found, built=is_built(model))
    except BaseException:
        claims.close()
        raise


def _warn(problem: str) -> None:
    print(f"gputopo: {problem}", file=sys.stderr)


def planned(
    machine: Machine,
    environ: Mapping[str, str],
    model: Sized = NO_MODEL,
    *,
    num_gpus: int | None = None,
    gpus: Sequence[int] | None = None,
    prefer_pix: bool = False,
    claimed: Mapping[int, str] = {},
    history: bool = True,
) -> Target:
    """Return what `strategy` plans for on a machine. `claimed`: GPUs that others have claimed, by whom."""
    exact = None if gpus is None else tuple(gpus)
    if num_gpus is None and exact is None and not prefer_pix:
        exact = visible_gpus(environ, machine) or None
    request = Request(
        model=model.name,
        workload=model.workload,
        num_gpus=num_gpus,
        gpus=exact,
        prefer_pix=prefer_pix,
        no_history=not history,
    )
    before = measured_before(machine, request)
    return target_of(machine, request, environ=environ, claimed=claimed, **before._asdict())


def lines_of(target: Target, found: Nearest, says: str | None = None) -> tuple[str, str]:
    """Return what was chosen, and why."""
    why = "; ".join(target.plan.choice.reasons[:2]) or "the only one there is"
    if found.lacks is not None:
        why += f"; tf.distribute lacks {found.lacks}, and this is the nearest"
    if says is not None:
        why += f"; {says}"
    return f"gputopo: {found.words} on {where_words(target)}.", f"gputopo: why: {why}."


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


def _made(target: Target, model: Sized, *, built: bool) -> "tf.distribute.Strategy":
    """Make the devices and the strategy. `built`: the model is, so that TensorFlow has its devices."""
    choice, backend = target.plan.choice, target.backend
    count = len(choice.gpus) or target.cpu_devices
    found = nearest(choice, backend, count)
    os.environ.update(target.plan.environment)
    import tensorflow as tf

    try:
        _set_up(tf, target, count)
    except RuntimeError as error:  # TensorFlow's word for devices that are in use
        if not built or len(tf.config.list_logical_devices(backend.upper())) != count:
            raise UsageError("TensorFlow has made its devices already", _BUILT if built else FIRST) from error
    from gputopo.launch.compare.strategies import strategy_of

    devices = [f"/{backend.upper()}:{number}" for number in range(count)]
    made = strategy_of(found.strategy, devices, ps_device(choice, backend) or _HOST)
    for line in lines_of(target, found, model.says):
        print(line, file=sys.stderr)
    return made


def _set_up(tf: Any, target: Target, count: int) -> None:
    """Make the logical devices. Raises RuntimeError if TensorFlow's runtime has begun."""
    if target.backend == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        return
    require_gpus(tf, count)
    # Begins the runtime now, so that no later setting changes what was planned.
    tf.config.list_logical_devices("GPU")
