"""The tf.distribute strategy for a plan's choice, or the nearest strategy to it.

| the plan                                  | tf.distribute                                               |
|-------------------------------------------|-------------------------------------------------------------|
| one device                                | OneDeviceStrategy                                           |
| parameter server on a device              | MirroredStrategy, ReductionToOneDevice: that device         |
| copies, `nccl`, `nccl_op`                 | MirroredStrategy, NcclAllReduce                             |
| copies, `tf_hierarchical`, even number    | MirroredStrategy, HierarchicalCopyAllReduce                 |
| copies, `one_device`                      | MirroredStrategy, ReductionToOneDevice                      |
| copies, `hierarchical`                    | none: HierarchicalCopyAllReduce, or as below for odd numbers |
| copies, others; server spread over devices | none: NCCL on GPUs, ReductionToOneDevice on CPU devices    |

Keras 3 cannot train models with Dropout or BatchNormalization under CentralStorageStrategy: each variable
that a replica updates would need an aggregation (keras 3.15, TensorFlow 2.21). MirroredStrategy without a
reduction uses collectives. With these, a loop over a data set in a `tf.function` fails ("You must feed a
value for placeholder tensor"), so it always has a reduction.
"""

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputopo.launch.hosts import starters
from gputopo.launch.jobs.model_costs import NO_MODEL, Sized, of_tensorflow, sized
from gputopo.launch.site import Site, tensorflow_notes
from gputopo.launch.spec.env import ALLOW_GROWTH
from gputopo.launch.spec.prepare import ps_device
from gputopo.launch.target import Target
from gputopo.planner import Request, counted_devices, visible_gpus
from gputopo.probes import load_cuda_libraries
from gputopo.report import note
from gputopo.values.errors import GputopoError, HardwareError, UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.all_reduce import parse
from gputopo.values.run.plan import SPREAD, Candidate
from gputopo.values.run.spec import Backend

if TYPE_CHECKING:
    import tensorflow as tf


FIRST = "call gputopo.launch.strategy before anything that uses a device: tensors, variables, models, data"
NCCL, HIERARCHICAL, ONE = "NCCL", "hierarchical copies", "reduction to one device"
_SAME = {"nccl": NCCL, "nccl_op": NCCL, "one_device": ONE}
_OPERATIONS = {NCCL: "NcclAllReduce", HIERARCHICAL: "HierarchicalCopyAllReduce", ONE: "ReductionToOneDevice"}


@dataclass(frozen=True)
class Nearest:
    """MirroredStrategy with a reduction, or OneDeviceStrategy.

    `lacks`: what the plan chose but tf.distribute does not have; None if it has everything.
    """

    reduction: str | None = None
    lacks: str | None = None

    @property
    def words(self) -> str:
        """The strategy in TensorFlow's terms: `MirroredStrategy with NCCL`."""
        return "OneDeviceStrategy" if self.reduction is None else f"MirroredStrategy with {self.reduction}"


def nearest_strategy(choice: Candidate, backend: Backend, count: int) -> Nearest:
    """Return the strategy for the choice of a plan on `count` devices."""
    if count == 1:
        return Nearest()
    between_copies = NCCL if backend == "gpu" else ONE
    if choice.variable_update == "parameter_server":
        if choice.ps_device == SPREAD:
            return Nearest(between_copies, "variables spread over the devices")
        # Without a plan's choice, this is the default on CPU devices, so there is nothing to explain.
        lacks = None if backend == "cpu" else "a parameter server that Keras 3 can train with"
        return Nearest(ONE, lacks)
    if choice.all_reduce is None:
        return Nearest(between_copies)
    name = parse(choice.all_reduce).name
    if name in _SAME:
        return Nearest(_SAME[name])
    lacks = None if name in ("tf_hierarchical", "collective") else f"the reduction {choice.all_reduce}"
    if name.endswith("hierarchical") and parse("tf_hierarchical").why_not(backend, count) is None:
        return Nearest(HIERARCHICAL, lacks)
    return Nearest(between_copies, lacks)


def require_gpus(tf: Any, count: int) -> None:
    """Enable memory growth, unless the user has set it. Raises HardwareError for other GPUs than planned.

    Raises RuntimeError if TensorFlow has made its devices.
    """
    load_cuda_libraries()
    gpus_seen = tf.config.list_physical_devices("GPU")
    if len(gpus_seen) != count:
        # The earlier check was successful, so TensorFlow has probably looked for GPUs before the plan.
        raise HardwareError(f"TensorFlow sees {len(gpus_seen)} GPUs, the plan has {count}", FIRST)
    for gpu in gpus_seen:
        if ALLOW_GROWTH not in os.environ:
            tf.config.experimental.set_memory_growth(gpu, True)


def where_words(target: Target) -> str:
    """Return the devices of a target: `GPUs 0, 1`, or CPU devices with the reason."""
    gpus = target.plan.choice.gpus
    if target.backend == "cpu":
        return f"{counted_devices(target.cpu_devices)} ({target.why_cpu})"
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"


def made_with_workers(
    target: Target, claim: starters.RankClaim, says: str | None, *, asked: int | None = None
) -> "tf.distribute.Strategy":
    """Make MultiWorkerMirroredStrategy on the plan's devices of this host; wait for the other workers.

    It uses NCCL between GPUs. Between CPUs it uses a ring over gRPC, for which TensorFlow takes one device of
    each host. `asked`: number of devices. Raises UsageError for several CPU devices, and if TensorFlow's
    runtime has started; HardwareError if TensorFlow does not see the GPUs.
    """
    on_gpus = target.backend == "gpu"
    if not on_gpus and asked not in (None, 1):
        raise UsageError(
            f"num_gpus={asked} of several workers needs GPUs: {target.why_cpu}",
            "remove num_gpus: MultiWorkerMirroredStrategy takes one CPU device of each host",
        )
    os.environ.update(target.plan.environment)
    import tensorflow as tf

    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=kinds.NCCL if on_gpus else kinds.RING
    )
    try:
        # If workers are joined too late, TensorFlow itself gives only a warning, and errors in later ops.
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
        if on_gpus:
            require_gpus(tf, len(target.plan.choice.gpus))
    except RuntimeError as error:
        raise UsageError("TensorFlow has already created its devices", FIRST) from error
    for line in lines_of_workers(target, claim, says):
        print(line, file=sys.stderr)
    made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return _warning_at_scope(
        made, keras_warnings(_keras_version(), len(target.plan.choice.gpus) or 1, workers=claim.size or 1)
    )


def lines_of_workers(target: Target, claim: starters.RankClaim, says: str | None = None) -> tuple[str, str]:
    """Return the lines with the choice for this worker and the reason."""
    on_gpus = target.backend == "gpu"
    by = "NCCL" if on_gpus else "a ring over gRPC"
    where = where_words(target) if on_gpus else f"one CPU device ({target.why_cpu})"
    reasons = target.plan.choice.reasons[:2] if on_gpus else ()
    why = "; ".join((f"{claim.source} has {claim.size} workers", *reasons, *([says] if says else [])))
    return (
        f"gputopo: MultiWorkerMirroredStrategy with {by}, worker {claim.rank} of {claim.size} on {where}.",
        f"gputopo: why: {why}.",
    )


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

    `model`: decides how gradients travel between GPUs. It is a name of `gputopo models`, `keras:NAME` or
    `module:function`; a function that builds a Keras model; a number of parameters; or a Keras model. A
    function is called once in a child process to measure its cost, unless TensorFlow has started. None: only
    distances are used.

    `num_gpus`, `gpus`, `prefer_pix`: as in `gputopo plan`. Without the first two, all GPUs are used. If
    CUDA_VISIBLE_DEVICES is set, as under `gputopo run -- python train.py`, its GPUs are used in its order.
    Without GPUs, `num_gpus` logical CPU devices are used, or the devices that TensorFlow has made. `claim`:
    claim the GPUs until this process ends, so that other runs of gputopo do not use them. GPUs that `gputopo
    run` claimed for this process can be used. `history`: use earlier runs of this machine, as in `gputopo
    plan`.

    If TF_CONFIG has several workers, as under `gputopo run` on several hosts, the strategy is
    MultiWorkerMirroredStrategy with the plan's devices of this host.

    Sets CUDA_VISIBLE_DEVICES of this process, memory growth and logical devices, and prints in two lines on
    stderr what was chosen and why.

    Raises UsageError, NoPlanError and HardwareError as `gputopo run` does, each with `what` and `hint`, which
    are both in its message; UsageError if TensorFlow has made other devices than it needs.
    """
    asked = {"num_gpus": num_gpus, "gpus": gpus, "prefer_pix": prefer_pix, "history": history}
    try:
        return _planned_and_made(model, asked, claim=claim)
    except GputopoError as error:
        error.args = (f"{error.what}\n{error.hint}",)
        raise error.with_traceback(None) from None


def _planned_and_made(model: object, asked: dict[str, Any], *, claim: bool) -> "tf.distribute.Strategy":
    workers = starters.tf_config(os.environ)
    site = Site(read_machine(), affinity=False, command="gputopo.launch.strategy", trains=True)
    _ = site.unusable  # check before a model is built
    # CPU devices have only one way to exchange gradients, whatever a model costs.
    sizes = NO_MODEL if callable(model) and site.why_cpu is not None else sized(model)
    if site.why_cpu is not None and asked["num_gpus"] is None and of_tensorflow("_initialized"):
        asked["num_gpus"] = len(sys.modules["tensorflow"].config.list_logical_devices("CPU"))
        sizes = sizes._replace(says="TensorFlow had already created its devices")
    claims = contextlib.ExitStack()
    atexit.register(claims.close)
    target = site.claimed(request_for(site, sizes, **asked), claims if claim else None)
    for sentence in tensorflow_notes(target):
        note(sentence)
    try:
        if workers is not None:
            return made_with_workers(target, workers, sizes.says, asked=asked["num_gpus"])
        return make_strategy(target, sizes)
    except BaseException:
        claims.close()
        raise


def request_for(
    site: Site,
    model: Sized = NO_MODEL,
    *,
    num_gpus: int | None = None,
    gpus: Sequence[int] | None = None,
    prefer_pix: bool = False,
    history: bool = True,
) -> Request:
    """Return the request of `strategy` on a site: without given GPUs, the visible ones in their order."""
    exact = None if gpus is None else tuple(gpus)
    if num_gpus is None and exact is None and not prefer_pix:
        exact = visible_gpus(site.environ, site.machine) or None
    return Request(
        model=model.name,
        workload=model.workload,
        num_gpus=num_gpus,
        gpus=exact,
        prefer_pix=prefer_pix,
        no_history=not history,
    )


def lines_of(target: Target, chosen: Nearest, says: str | None = None) -> tuple[str, str]:
    """Return the lines with the choice and the reason."""
    why = "; ".join(target.plan.choice.reasons[:2]) or "the only one there is"
    if chosen.lacks is not None:
        why += f"; tf.distribute does not have {chosen.lacks}, and this is the nearest"
    if says is not None:
        why += f"; {says}"
    return f"gputopo: {chosen.words} on {where_words(target)}.", f"gputopo: why: {why}."


def read_machine() -> Machine:
    """Return this machine, with its last saved bandwidth. Raises GputopoError."""
    from gputopo.probes import begin_reading
    from gputopo.runs import BoxHistory

    root = Path(os.environ.get("GPUTOPO_ROOT") or "/")
    with begin_reading(root, lambda text: print(f"gputopo: {text}", file=sys.stderr)) as read:
        machine = read()
    if len(machine.gpus) > 1 and machine.bandwidth is None:
        with contextlib.suppress(GputopoError):  # without costs, the plan uses only distances
            saved = BoxHistory().latest(machine)
            if saved is not None:
                import msgspec

                machine = msgspec.structs.replace(machine, bandwidth=saved.bandwidth)
    return machine


def make_strategy(target: Target, model: Sized) -> "tf.distribute.Strategy":
    """Make the devices and the strategy."""
    choice, backend = target.plan.choice, target.backend
    count = len(choice.gpus) or target.cpu_devices
    strategy_words = nearest_strategy(choice, backend, count)
    os.environ.update(target.plan.environment)
    import tensorflow as tf

    try:
        _set_up(tf, target, count)
    except RuntimeError:  # TensorFlow has made its devices
        if len(tf.config.list_logical_devices(backend.upper())) != count:
            raise UsageError("TensorFlow has already created its devices", FIRST) from None
    for line in lines_of(target, strategy_words, model.says):
        print(line, file=sys.stderr)
    devices = [f"/{backend.upper()}:{number}" for number in range(count)]
    if strategy_words.reduction is None:
        return tf.distribute.OneDeviceStrategy(devices[0])
    server = ps_device(choice, backend)
    operation = getattr(tf.distribute, _OPERATIONS[strategy_words.reduction])
    made = tf.distribute.MirroredStrategy(devices, operation() if server is None else operation(server))
    return _warning_at_scope(made, keras_warnings(_keras_version(), count))


def keras_warnings(version: str | None, devices: int, *, workers: int = 1) -> tuple[str, ...]:
    """Return what fails in Keras 3 under a strategy of several devices, one line for each fault.

    Seen with TensorFlow 2.21 and Keras 3.15; tf-keras does not have these faults. `version`: of the Keras
    that TensorFlow uses. `devices`: of one worker.
    """
    if version is None or not version.startswith("3."):
        return ()
    warnings = []
    if workers > 1:
        warnings.append(
            f"with {workers} workers, fit, evaluate and predict of Keras {version} fail: write a loop"
        )
    if devices > 1:
        warnings += [
            f"on {devices} devices, Keras {version} fails with jit_compile or gradient_accumulation_steps",
            f"on {devices} devices, choose a batch size that {devices} divides, and drop a shorter last "
            "batch (drop_remainder=True): fit fails on fewer examples than devices, or its loss is NaN",
        ]
    return tuple(warnings)


def _keras_version() -> str | None:
    """Return the version of Keras behind `tf.keras`; None for tf-keras, or if none is installed."""
    if os.environ.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True"):
        return None
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("keras")
    return None


def _warning_at_scope(made: "tf.distribute.Strategy", warnings: Sequence[str]) -> "tf.distribute.Strategy":
    """Print warnings when the scope is first entered: a strategy that is not used needs no warning."""
    scope, left = made.scope, list(warnings)

    def scope_after_warnings() -> Any:
        while left:
            print(f"gputopo: {left.pop(0)}", file=sys.stderr)
        return scope()

    made.scope = scope_after_warnings
    return made


def _set_up(tf: Any, target: Target, count: int) -> None:
    """Make the logical devices. Raises RuntimeError if TensorFlow's runtime has started."""
    if target.backend == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        return
    require_gpus(tf, count)
    # Starts the runtime now, so that no later setting changes what was planned.
    tf.config.list_logical_devices("GPU")
