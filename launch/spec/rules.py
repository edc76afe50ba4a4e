"""Which options of a run go together: the rows `training` of `gputopo/values/refusals.csv`. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

from gputopo.launch.spec.model_names import data_of
from gputopo.values.errors import UsageError
from gputopo.values.refusals import refuse
from gputopo.values.run import all_reduce
from gputopo.values.run.drill import SLOW_WEIGHTS
from gputopo.values.run.names import MULTI_WORKER, Kind, read
from gputopo.values.run.spec import Exchange, RunSpec

OF_ONE_PROCESS = ("nccl_op",)
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# Flags of a CPU with instructions for bfloat16, the faster ones first. Measured with AMX on two cores that
# other programs used as well, medians of 3 runs: lenet 2.2, resnet20 1.5, alexnet 1.8 times as fast as fp32.
_BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16"}
_OFF = ("0", "false")  # what TensorFlow's ReadBoolFromEnvVar takes for no, in any case


def check(spec: RunSpec) -> None:
    """Raise UsageError for options that do not go together."""

    @cache
    def given(name: str) -> str | None:
        if name.startswith("asked."):
            value = spec.asked.get(name.removeprefix("asked."))
            return None if value is None else str(value).lower()
        found = _FOLLOWS[name](spec) if name in _FOLLOWS else attrgetter(name)(spec)
        return str(found).lower() if found else None

    refuse("training", given, spec=spec)
    asked = None if spec.all_reduce is None else all_reduce.parse(spec.all_reduce)
    if asked is not None and (why_not := asked.why_not(spec.backend, len(spec.devices))) is not None:
        reason, near = why_not
        raise UsageError(f"--all-reduce {asked.written} cannot be used: {reason}", f"use --all-reduce {near}")


def check_layout(spec: RunSpec, environment: Mapping[str, str]) -> None:
    """Raise UsageError for a layout that needs oneDNN where the worker's environment turns that off."""
    off = environment.get(_ONEDNN, "").lower() in _OFF
    if spec.backend == "cpu" and spec.data_format == "NCHW" and off and not spec.precision.xla:
        raise UsageError(
            f"--data-format NCHW needs oneDNN on CPU devices, and {_ONEDNN}={environment[_ONEDNN]} "
            "turns it off",
            f"use --data-format NHWC, or unset {_ONEDNN}",
        )


def remarks(spec: RunSpec) -> tuple[str, ...]:
    """Return notes on the numerics for the result."""
    if spec.backend == "cpu" and spec.precision.compute == "fp16" and not spec.precision.xla:
        return ("Most CPUs have no fp16 arithmetic: it is emulated here, and slower than fp32.",)
    return ()


def bf16_remark(spec: RunSpec, cpu_flags: Collection[str]) -> tuple[str, ...]:
    """Return that bfloat16 is faster, if the CPU has instructions for it. `cpu_flags`: of /proc/cpuinfo."""
    names = [name for flag, name in _BF16.items() if flag in cpu_flags]
    if not names or spec.backend == "gpu" or spec.task == "input" or spec.precision.compute != "fp32":
        return ()
    return (f"This CPU has {names[0]}: --precision bf16 is usually 1.5 to 2 times as fast here.",)


def is_multi_worker(spec: RunSpec) -> bool:
    """Whether each host trains with a process of its own, by a strategy of tf.distribute."""
    return _kind(spec) == MULTI_WORKER


def _kind(spec: RunSpec) -> Kind | None:
    return None if spec.strategy is None else read(spec.strategy).kind


def _devices_of_hosts(spec: RunSpec) -> list[int]:
    return list(Counter(device.rank for device in spec.devices).values())


def _has_copies(spec: RunSpec) -> bool:
    """Whether it is a strategy that has variables on each device."""
    return _kind(spec) not in (None, "central")


def _moves(spec: RunSpec) -> bool:
    """Whether another exchange of weights and gradients was asked for than the trainer's own."""
    own = "replicated" if _has_copies(spec) else "parameter_server"
    exchange = spec.exchange
    plain = Exchange(ps_spread=exchange.ps_spread, groups=exchange.groups, small_group=exchange.small_group)
    return spec.variable_update != own or spec.all_reduce is not None or exchange != plain


def _last_step(spec: RunSpec) -> float:
    """Return the number of the last possible step: an evaluation counts from 0, all others from 1."""
    if spec.batch_limit is None:
        return math.inf
    return spec.batch_limit - 1 if spec.task == "eval" else spec.batch_limit


# What rows name besides fields of the spec.
_FOLLOWS: Mapping[str, Callable[[RunSpec], Any]] = {
    "multi_worker": is_multi_worker,
    "several_of_a_host": lambda spec: max(_devices_of_hosts(spec)) > 1,
    "unequal_hosts": lambda spec: len(set(_devices_of_hosts(spec))) > 1,
    "kind": _kind,
    "reduction": lambda spec: spec.strategy and read(spec.strategy).reduction,
    "copies": _has_copies,
    "moves": _moves,
    "count": lambda spec: len(spec.devices),
    "odd": lambda spec: len(spec.devices) % 2,
    "batch_of_each": lambda spec: isinstance(spec.batch_size, tuple),
    "late_drill": lambda spec: max((one.step for one in spec.drills), default=0) > _last_step(spec),
    "late_trace": lambda spec: max(spec.lifecycle.trace_steps, default=0) > _last_step(spec),
    "slow_weights": lambda spec: any(one.fault == SLOW_WEIGHTS for one in spec.drills),
    "data_of_model": lambda spec: data_of(spec.model),
    "other_data": lambda spec: data_of(spec.model) not in (None, spec.data.name),
}
