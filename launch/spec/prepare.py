"""Turns a plan into the frozen spec of a run, without reading the machine, files or the clock."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec

from gputopo.launch.device_names import device_name, host_names, rank_of, rank_of_place
from gputopo.launch.spec import model_names
from gputopo.launch.spec.model_names import data_of, model_for
from gputopo.launch.spec.recipes import Recipe, model_recipe
from gputopo.launch.spec.rules import check, is_multi_worker
from gputopo.launch.target import Target
from gputopo.planner import counted_devices
from gputopo.topology import reduction_groups
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.all_reduce import NCCL, parse
from gputopo.values.run.batches import (
    BatchSize,
    as_typed,
    batches_of,
    is_auto,
    plain,
    require_one_each,
    shares,
)
from gputopo.values.run.drill import says as drill_says
from gputopo.values.run.events import NETWORK, Device, gpu_key
from gputopo.values.run.names import MULTI_WORKER
from gputopo.values.run.plan import CPU_DEVICES, HOST_PS, SPREAD, Candidate, Plan
from gputopo.values.run.program import ProgramSpec
from gputopo.values.run.readers import FP16_LOSS_SCALE, MODEL_SCHEDULE
from gputopo.values.run.spec import Backend, DataFormat, Exchange, Precision, RunSpec, Task

# On CPU devices, counting ends at this relative standard error, or after this time at the latest. Not
# measured; chosen because runs repeat within 1 to 2% on an idle machine, so more steps give no better result.
CPU_MAX_ERROR, CPU_TIME_BUDGET_S = 0.01, 20.0
CPU_BATCHES = 50  # if the number of steps must be exact
CPU_WARMUP_BATCHES = 3
# As in tf_cnn_benchmarks: --num_batches 100 and a warm-up of 10.
GPU_BATCHES = 100
GPU_WARMUP_BATCHES = 10
# Minimum time of a warm-up: after 3 steps in 0.2 s, lenet on two cores is still 5% slower for 1 s.
MIN_WARMUP_S = 1.0
# Medians of 3 runs on two cores that other programs also used: lenet 0.5, resnet20 0.6, alexnet 0.7.
_XLA_ON_CPU = (
    "--xla is usually slower on CPU devices: on two cores, three models ran at 0.5 to 0.7 of their speed, "
    "after compiling for 9 to 44 s."
)
# Between hosts and with NCCL, gradients up to this size are reduced together, up to this many at a time.
# Between hosts, each tensor is a call with about 0.1 ms of processor time on both. With NCCL, each operation
# is a kernel on all GPUs that waits for the one before; MirroredStrategy packs gradients, too. On two hosts,
# 16 or 64 of the 60 gradients of resnet20 at a time are equally fast. With 16, each of four hosts adds some,
# so that the path of each host is measured. Not measured on GPUs.
SMALL_BYTES = 2**20
SMALL_AT_ONCE = 16
_DEFAULT_FORMAT: dict[Backend, DataFormat] = {"cpu": "NHWC", "gpu": "NCHW"}  # the faster format on each

_DOES: dict[Task, str] = {
    "train": "training",
    "forward": "forward passes",
    "eval": "evaluating",
    "input": "measuring the input",
}


def reduced_by_strategy(plan: Plan) -> Plan:
    """Return a plan without reductions, because a strategy of tf.distribute has its own."""

    def without(candidate: Candidate) -> Candidate:
        return msgspec.structs.replace(candidate, all_reduce=None)

    candidates = tuple(map(without, plan.candidates))
    return msgspec.structs.replace(plan, choice=without(plan.choice), candidates=candidates)


def spec_of(target: Target, model: str, asked: Mapping[str, Any] | None = None, **given: Any) -> RunSpec:
    """Return the spec for a target: the `given` fields, and defaults of model, backend and plan for others.

    `asked`: the options as typed, for the result. On the GPU backend, tower i is `/GPU:i`, the i-th of the
    plan's GPUs, because the worker sees only these GPUs. On the CPU backend it is `/CPU:i`, which represents
    that GPU if the plan has GPUs (a rehearsal). Raises UsageError for an unknown model, variables on a GPU
    outside the plan, a drill on a missing device, or options that do not go together.
    """
    if target.others and target.plan.choice.all_reduce == NCCL and "all_reduce" not in (asked or {}):
        # Chosen by prediction: the strategy that most people use between hosts.
        target = replace(target, plan=reduced_by_strategy(target.plan))
        given = {**given, "strategy": f"{MULTI_WORKER}:{NCCL}"}
    backend, choice = target.backend, target.plan.choice
    count = sum(host.counted for host in target.hosts)
    fields = {"batch_size": 1, **given}
    requested = RunSpec(model=model, devices=(), backend=backend, asked=dict(asked or {}), **fields)
    model = model_for(model, requested.data.name)
    data_name = None if requested.data.folder is None else requested.data.name or data_of(model)
    all_reduce = choice.all_reduce
    if all_reduce is not None and "all_reduce" not in requested.asked:
        why_not = parse(all_reduce).why_not(backend, count)  # CPU devices lack some reductions
        all_reduce = all_reduce if why_not is None else why_not[1]
    precision = requested.precision
    has_loss_scale = "loss_scale" in requested.asked or precision.loss_scale != Precision().loss_scale
    if precision.compute == "fp16" and not has_loss_scale:
        precision = msgspec.structs.replace(precision, loss_scale=FP16_LOSS_SCALE)
    spec = msgspec.structs.replace(
        requested,
        model=model,
        devices=devices_of(target),
        servers=target.servers,
        variable_update=choice.variable_update,
        ps_device=_server_device(target),
        all_reduce=all_reduce,
        data_format=given.get("data_format", _DEFAULT_FORMAT[backend]),
        exchange=_exchange(target, requested),
        data=msgspec.structs.replace(requested.data, name=data_name),
        precision=precision,
        max_clocks_mhz={} if backend == "cpu" else max_clocks_of_all(target),
        rehearsal_of=target.rehearsal_of,
        versions=driver_versions(target),
        says=_notes(target, requested, count),
        **_steps(target, requested, given, model, count),
    )
    rate, schedule = _recipe(spec, given, count)
    saved = spec.lifecycle
    if saved.resume_or_start and spec.num_batches is not None:
        # A job that is started again ends at the same step.
        saved = msgspec.structs.replace(saved, until=spec.num_warmup_batches + spec.num_batches)
    spec = msgspec.structs.replace(
        spec,
        lifecycle=saved,
        rank=0 if is_multi_worker(spec) else None,
        learning_rate=rate,
        optimization=msgspec.structs.replace(spec.optimization, schedule=schedule),
        says=(*spec.says, *_engine_note(spec), *_batch_note(spec, choice.batch_sizes)),
    )
    _check_drills(spec)
    check(spec)
    return spec


class Fallback(NamedTuple):
    """The run that replaces one with NCCL, chosen by prediction, if NCCL fails."""

    planned: Candidate
    choice: Candidate
    spec: RunSpec


def without_nccl(target: Target, spec: RunSpec) -> Fallback | None:
    """Return the best other reduction on the planned GPUs; None if NCCL is not used, or was requested.

    It must be a reduction, because a reduction is tested before training. A parameter server would train with
    data that links corrupt. On the bundled machines, the best of all other placements is no more than 1%
    faster.
    """
    plan = target.plan
    if spec.all_reduce != NCCL or "all_reduce" in spec.asked or spec.servers:
        return None
    gpus = plan.choice.gpus
    same_gpus = (candidate for candidate in plan.candidates if set(candidate.gpus) == set(gpus))
    others = (candidate for candidate in same_gpus if candidate.all_reduce not in (None, NCCL))
    choice = next(others, Candidate(gpus=gpus, variable_update="replicated", all_reduce="copy"))
    # Towers keep their GPUs, which the worker's environment has in this order.
    choice = msgspec.structs.replace(choice, gpus=gpus, batch_sizes=plan.choice.batch_sizes)
    other = replace(target, plan=msgspec.structs.replace(plan, choice=choice))
    exchange = _exchange(other, spec)
    return Fallback(
        plan.choice, choice, msgspec.structs.replace(spec, all_reduce=choice.all_reduce, exchange=exchange)
    )


def _notes(target: Target, requested: RunSpec, count: int) -> tuple[str, ...]:
    """Return notes for every output: where it trains, and what makes its steps different."""
    does, gpus = _DOES[requested.task], target.plan.choice.gpus
    of_hosts = f" of {len(target.others) + 1} hosts" if target.others else ""
    if target.rehearsal_of is not None:
        listed = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"
        on = f"{count} CPU device{'s' if count > 1 else ''}"
        where = f"Rehearsal of {target.rehearsal_of} ({listed}) on {on}: the speeds are of this CPU."
    elif target.backend == "cpu":
        where = f"{target.why_cpu}: {does} on {counted_devices(count)}{of_hosts}."
    elif target.others:
        where = f"{does.capitalize()} on {count} GPUs{of_hosts}."
    else:
        where = f"{does.capitalize()} on {count} GPU{'s' if count > 1 else ''}: {', '.join(map(str, gpus))}."
    stale = ("Weights and gradients are one step old: --staged-vars.",) if requested.exchange.staged else ()
    old = ("Gradients are applied one step late: relaxed consistency.",) if requested.exchange.relaxed else ()
    xla = (_XLA_ON_CPU,) if requested.precision.xla and target.backend == "cpu" else ()
    noun = "GPU" if target.backend == "gpu" and not target.others else "device"
    drill = (drill_says(requested.drills, noun),) if requested.drills else ()
    return (*drill, where, *xla, *stale, *old)


def _engine_note(spec: RunSpec) -> tuple[str, ...]:
    """Return how several hosts exchange data, and the limits of that way."""
    if not spec.servers:
        return ()
    if is_multi_worker(spec):
        return (
            "Between hosts: TensorFlow's MultiWorkerMirroredStrategy, without drills, packed gradients and "
            "the times of each host's transfers.",
        )
    other = " NCCL between hosts needs --strategy multi_worker_mirrored." if spec.backend == "gpu" else ""
    return (f"Between hosts: one graph over TensorFlow's servers, by gRPC.{other}",)


def _batch_note(spec: RunSpec, planned: tuple[int, ...]) -> tuple[str, ...]:
    """Return the batch sizes that `--batch-size auto` chose; empty without that option."""
    if not is_auto(spec.asked.get("batch_size")):
        return ()
    each = as_typed(spec.batch_size)
    if isinstance(spec.batch_size, tuple):
        return (f"--batch-size auto: {each}, in proportion to the speed of each GPU alone.",)
    why = (
        f"the nearest to the plan's {as_typed(planned)}"
        if planned
        else "because their speeds are equal or unknown"
    )
    return (f"--batch-size auto: {each} on each device, {why}.",)


def _steps(
    target: Target, requested: RunSpec, given: Mapping[str, Any], model: str, count: int
) -> dict[str, Any]:
    """Return the batch of a device and the number of steps: by count, by time, or all examples."""
    gpu_batch, cpu_batch, _ = model_names.defaults(model)
    on_cpu = requested.backend == "cpu"
    batches, warmup = (CPU_BATCHES, CPU_WARMUP_BATCHES) if on_cpu else (GPU_BATCHES, GPU_WARMUP_BATCHES)
    # Hosts must agree, and with checkpoints the number of trained steps has to be known.
    exact = bool(requested.num_batches or target.others or requested.lifecycle.checkpoints)
    if requested.task == "eval" and requested.data.folder is not None and requested.num_batches is None:
        counted: dict[str, Any] = {"num_batches": None, "time_budget_s": None, "max_batches": None}
    elif on_cpu and not exact and requested.task != "eval":
        counted = {"time_budget_s": CPU_TIME_BUDGET_S, "max_error": CPU_MAX_ERROR, "max_batches": None}
    else:
        number = requested.num_batches or batches
        counted = {"num_batches": number, "time_budget_s": None, "max_batches": number}
    default = gpu_batch
    if on_cpu:  # the default of two devices, divided among more devices
        default = cpu_batch if count <= CPU_DEVICES else max(1, cpu_batch * CPU_DEVICES // count)
    batch: BatchSize = given.get("batch_size", default)
    require_one_each(batch, count)
    planned = target.plan.choice.batch_sizes
    if is_auto(requested.asked.get("batch_size")) and planned:
        batch = shares(sum(batches_of(batch, count)), planned)
    min_warmup_s = None if "num_warmup_batches" in given else 0.0 if exact else MIN_WARMUP_S
    return {
        "batch_size": plain(batches_of(batch, count)),
        "num_warmup_batches": given.get("num_warmup_batches", warmup),
        "min_warmup_s": min_warmup_s,
        **counted,
    }


def _recipe(spec: RunSpec, given: Mapping[str, Any], count: int) -> Recipe:
    """Return the learning rate and schedule: as requested, else from the model's authors."""
    added = count if spec.grad_reduce == "sum" else 1
    batch = spec.joint_batch // count if spec.variable_update == "independent" else spec.joint_batch
    own_rate, own_schedule = model_recipe(spec.model, batch, added=added)
    rate = given.get("learning_rate", own_rate)
    schedule = spec.optimization.schedule
    if spec.asked.get("learning_rate_schedule") == MODEL_SCHEDULE:
        warmup = schedule.warmup_steps or own_schedule.warmup_steps
        schedule = msgspec.structs.replace(own_schedule, warmup_steps=warmup)
    return rate * count if spec.asked.get("scale_learning_rate") else rate, schedule


def _exchange(target: Target, requested: RunSpec) -> Exchange:
    exchange = requested.exchange
    choice, groups = target.plan.choice, exchange.groups
    if choice.all_reduce == "hierarchical" and not groups:
        if target.others:  # the towers of each host
            towers = iter(range(sum(host.counted for host in target.hosts)))
            groups = tuple(tuple(islice(towers, host.counted)) for host in target.hosts)
        elif target.machine is not None:
            groups = reduction_groups(target.machine, choice.gpus)
    packs = exchange.repacking or any(name.startswith("agg_small_grads") for name in requested.asked)
    if not packs:
        by_nccl = target.backend == "gpu" and parse(choice.all_reduce or "copy").is_by_nccl
        reduces = requested.task == "train" and choice.all_reduce is not None
        together = Exchange(small_bytes=SMALL_BYTES, small_group=SMALL_AT_ONCE)
        usual = together if reduces and (target.others or by_nccl) else Exchange()
        exchange = msgspec.structs.replace(
            exchange, small_bytes=usual.small_bytes, small_group=usual.small_group
        )
    return msgspec.structs.replace(exchange, ps_spread=choice.ps_device == SPREAD, groups=groups)


def driver_versions(target: Target) -> dict[str, str]:
    """Return the versions that the worker cannot see."""
    if target.machine is None or target.backend == "cpu" or target.machine.driver is None:
        return {}
    driver = target.machine.driver
    known = {"driver": driver.version, "cuda_driver": driver.cuda_version}
    return {name: version for name, version in known.items() if version is not None}


def _check_drills(spec: RunSpec) -> None:
    on_cpu = spec.backend == "cpu" or bool(spec.servers)  # several hosts each have a GPU 0
    known = [device.tower if on_cpu or device.gpu is None else device.gpu for device in spec.devices]
    stray = next((drill for drill in spec.drills if drill.device not in (None, *known)), None)
    if stray is not None:
        noun = "device" if on_cpu else "GPU"
        listed = ", ".join(map(str, known))
        raise UsageError(
            f"--drill {stray.typed} is for {noun} {stray.device}, but this run has {listed}",
            f"use a {noun} of this run, such as {known[-1]}",
        )


def max_clocks_of_all(target: Target) -> dict[str, dict[str, int]]:
    """Return the maximum clocks of the chosen GPUs of all hosts, if NVML reports them, by `gpu_key`."""
    known = {}
    for rank, host in enumerate(target.hosts):
        for index in host.plan.choice.gpus:
            if (gpu := find_gpu(host.machine, index)) is not None:
                clocks = {"graphics": gpu.clocks_mhz.graphics.max, "memory": gpu.clocks_mhz.memory.max}
                known[gpu_key(rank, index)] = {name: mhz for name, mhz in clocks.items() if mhz is not None}
    return known


def ps_device(choice: Candidate, backend: Backend) -> str | None:
    """Return TensorFlow's device of all variables; None if they are on several devices.

    Raises UsageError for variables on a GPU that is not in the plan.
    """
    if choice.ps_device in (None, SPREAD):
        return None
    if choice.ps_device == "cpu":
        return "/CPU:0"
    number = int(choice.ps_device.removeprefix("gpu:"))
    if not choice.gpus:
        return f"/CPU:{number}"
    if number not in choice.gpus:
        raise UsageError(
            f"the variables cannot be on GPU {number}: the run uses GPUs {', '.join(map(str, choice.gpus))}",
            "use one of these with --ps, or add the GPU to --gpus",
        )
    return f"/{backend.upper()}:{choice.gpus.index(number)}"


def devices_of(target: Target) -> tuple[Device, ...]:
    """Return the towers of all hosts, rank 0 first.

    Tower i of a host is `/GPU:i`, the i-th of its planned GPUs, or `/CPU:i`, which represents that GPU.
    """
    devices: list[Device] = []
    is_alone = not target.others
    holder = rank_of(_server_device(target) or "")  # None for one host
    names = host_names([server.host for server in target.servers])
    held_by = target.plan.choice.ps_device
    if not is_alone and held_by is not None and held_by.startswith(HOST_PS):
        held_by = "cpu"
    for rank, host in enumerate(target.hosts):
        gpus = host.plan.choice.gpus
        for number in range(host.counted):
            gpu = find_gpu(host.machine, gpus[number]) if gpus else None
            hop: str | None = NETWORK
            if holder in (None, rank):
                hop = _hop(number, gpus, held_by if is_alone or holder == rank else None, host.machine)
            device = Device(
                tower=len(devices),
                device=device_name(target.backend.upper(), number, None if is_alone else rank),
                rank=rank,
                host=None if is_alone else names[rank],
                gpu=gpus[number] if gpus else None,
                gpu_name=None if gpu is None else gpu.name,
                hop_to_variables=hop,
            )
            devices.append(device)
    return tuple(devices)


def _server_device(target: Target) -> str | None:
    """Return TensorFlow's device of all variables: on rank 0, or the CPU of the host in `host:N`."""
    choice = target.plan.choice
    if not target.others:
        return ps_device(choice, target.backend)
    if choice.ps_device is not None and choice.ps_device.startswith(HOST_PS):
        return device_name("CPU", 0, rank_of_place(choice.ps_device, len(target.hosts)))
    device = ps_device(choice, target.backend)
    if device is None:
        return None
    kind, _, number = device.removeprefix("/").partition(":")
    return device_name(kind, int(number), 0)


def find_gpu(machine: Machine | None, index: int | None) -> Gpu | None:
    """Return the machine's GPU with that index, None if it has no such GPU."""
    return None if machine is None else next((gpu for gpu in machine.gpus if gpu.index == index), None)


def _hop(tower: int, gpus: Sequence[int], held_by: str | None, machine: Machine | None) -> str | None:
    """Return the distance from a tower to the variables: a link of the planned machine, also in a rehearsal.

    `gpus`: planned on the host; empty without GPUs. `held_by`: the place of the variables, as in a Candidate.
    """
    if held_by is None:
        return None
    if held_by == SPREAD:
        return "spread"
    holder = None if held_by == "cpu" else int(held_by.removeprefix("gpu:"))
    if not gpus:
        return "local" if tower == (holder or 0) else "host"
    if holder is None:
        return "host"
    if gpus[tower] == holder:
        return "local"
    link = None if machine is None else machine.link(gpus[tower], holder)
    if link is not None and link.nvlinks:
        return f"NV{link.nvlinks}"
    return "unknown" if link is None or link.hop is None else link.hop.value


def program_spec(target: Target, command: Sequence[str], says: Sequence[str] = ()) -> ProgramSpec:
    """Return the spec of a program on a host's target; GPU i of the plan is GPU i for the program."""
    on_gpus = target.backend == "gpu"
    words = words_of(command)
    # for the name of the run's folder
    name = "".join(
        letter if letter.isalnum() or letter in "._-" else "_" for letter in PurePath(words[0]).name
    )[:40]
    return ProgramSpec(
        model=name,
        command=words,
        devices=devices_of(target) if on_gpus else (),
        backend=target.backend,
        max_clocks_mhz=max_clocks_of_all(target) if on_gpus else {},
        rehearsal_of=target.rehearsal_of,
        versions=driver_versions(target),
        says=tuple(says),
    )


def words_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command as JSON can store it: its words can be any bytes, but JSON is UTF-8."""
    return tuple(word.encode(errors="replace").decode() for word in command)
