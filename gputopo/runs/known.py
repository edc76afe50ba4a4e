"""What is known before a run and used to judge it: earlier runs, predicted or published speeds.

The expected speed is the speed of earlier runs of the same job on the same GPUs, of this machine or of the
same hosts; else the speed that the plan predicts; else, on one host, published speeds of the same job on the
same number of GPUs of the same model.
"""

import functools
from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import NamedTuple

import msgspec

from gputopo.captures.recording import bundled_names, read_bundled
from gputopo.findings import find
from gputopo.findings.network import ERRORS, LINK_DOWN, LINK_SLOW, MTU_DIFFERS
from gputopo.prediction import SAME_RUN, paths_of, single_gpu_speeds
from gputopo.reference import Published, expected_gpu, published_figures, published_machines
from gputopo.runs.past_runs import MAX_UNCERTAINTY, past_speeds, why_unpredicted
from gputopo.values.machine import Machine
from gputopo.values.run.events import Device, gpu_key
from gputopo.values.run.plan import Plan
from gputopo.values.run.result import Result
from gputopo.values.run.spec import JobSpec, RunSpec
from gputopo.values.run.verdict import Expected, Known
from gputopo.workload import Workload


class Together(NamedTuple):
    """The devices that train together on several hosts; empty for a job on one host.

    `devices`: rank of the host, index and model of the GPU, for each.
    """

    hosts: tuple[tuple[str, str], ...]  # name, and for ranks above 0 the address on the job's network
    devices: tuple[tuple[int, int | None, str], ...]


def together(job: JobSpec) -> Together:
    """Return the hosts and devices that train together in a job."""
    return Together(
        tuple(
            (one.host, one.address.rpartition(":")[0] if rank else "") for rank, one in enumerate(job.servers)
        ),
        tuple(
            (one.rank, one.gpu, (one.gpu_name or "").removeprefix("NVIDIA "))
            for one in job.devices
            if job.servers
        ),
    )


SAME_JOB = 1.10  # factor for the same job on the same model: machines and versions of TensorFlow differ
# Maximum difference of the images/sec of two runs of one job on the CPU. Not measured; chosen because other
# programs use the CPU too.
SAME_CPU_RUN = 0.10
# The latest runs of one job. Not measured; chosen because one disturbed run does not move their median.
MAX_RUNS = 5
_HERE = "this machine"
_NO_SPEED = "the plan predicts no speed"

# Rules that explain a slow network.
_OF_PORTS = frozenset(rule.id for rule in (LINK_DOWN, LINK_SLOW, MTU_DIFFERS, ERRORS))


def known_before(
    job: RunSpec,
    devices: Sequence[Device],
    batches: Sequence[int],
    machine: Machine,
    plan: Plan,
    past: Sequence[Result],
    workload: Workload | None,
) -> Known:
    """Return what is known of a run. `past`: runs of this machine, latest first.

    `workload`: the costs of the model; None if unknown.
    """
    uses_past = not job.asked.get("no_history")
    past = past if uses_past else ()
    if job.backend == "cpu":  # the speed of CPU devices is neither predicted nor published
        return Known(expected=_of_earlier_runs(job, past, _HERE))
    expected = (
        _of_earlier_runs(job, past, _HERE)
        or _of_the_plan(job, plan, batches)
        or _of_others(job, devices, batches)
    )
    unexpected = (
        "there is no earlier run of this job on this machine, "
        f"{why_unpredicted(job) or _NO_SPEED}, and no figure of it was published"
    )
    return Known(
        expected=expected,
        unexpected=None if expected else unexpected,
        speeds=_speeds(job, devices, batches, machine, past, workload),
        sharing=_sharing(devices, machine),
        memory_mib=_memory_mib(machine),
    )


def known_of_hosts(
    job: RunSpec,
    devices: Sequence[Device],
    batches: Sequence[int],
    machines: Sequence[Machine | None],
    plan: Plan,
    past: Sequence[Result],
) -> Known:
    """Return what is known of a run on several hosts. `machines`: by rank; see `known_before`.

    `past`: runs of this host with others, latest first.
    """
    uses_past = not job.asked.get("no_history")
    expected = _of_earlier_runs(job, past if uses_past else (), "these hosts")
    if job.backend == "cpu":
        return Known(expected=expected)
    expected = expected or _of_the_plan(job, plan, batches)
    why = why_unpredicted(job) or _NO_SPEED
    unexpected = f"there is no earlier run of this job on these devices of these hosts, and {why}"
    found = known_of_machines(devices, machines)
    return msgspec.structs.replace(found, expected=expected, unexpected=None if expected else unexpected)


def known_of_machines(devices: Sequence[Device], machines: Sequence[Machine | None]) -> Known:
    """Return what is known of the machines of several hosts, by rank."""
    sharing: dict[int, tuple[int, ...]] = {}
    memory_mib: dict[str, int] = {}
    for rank, machine in enumerate(machines):
        if machine is not None:
            sharing |= _sharing([device for device in devices if device.rank == rank], machine)
            memory_mib |= _memory_mib(machine, rank)
    return Known(sharing=sharing, memory_mib=memory_mib, networks=_networks(machines))


def _networks(machines: Sequence[Machine | None]) -> dict[int, str]:
    """Return by rank the port faults that only this host has, and whether its port is slower than others'."""
    known = {rank: machine for rank, machine in enumerate(machines) if machine is not None}
    says = {
        rank: [one.says for one in find(machine) if one.id in _OF_PORTS] for rank, machine in known.items()
    }
    ports = {
        rank: [port for nic in one.nics for port in nic.ports or () if port.up] for rank, one in known.items()
    }
    rates = {rank: max((one.rate_gbit_per_s or 0.0 for one in up), default=0.0) for rank, up in ports.items()}
    found = {}
    for rank in known:
        others = [other for other in known if other != rank]
        own = [one for one in says[rank] if not any(one in says[other] for other in others)]
        usual = median_low([rates[other] for other in others]) if others else 0.0
        if 0 < rates[rank] < usual:
            own.append(f"its fastest port has {rates[rank]:g} Gbit/s, the ports of the others {usual:g}")
        if own:
            found[rank] = "; ".join(own)
    return found


def _memory_mib(machine: Machine, rank: int = 0) -> dict[str, int]:
    totals = {gpu_key(rank, gpu.index): gpu.memory_mib.total for gpu in machine.gpus}
    return {key: total for key, total in totals.items() if total is not None}


def alone_of_run(result: Result, earlier: Result) -> dict[int, float]:
    """Return the images/sec of a GPU by itself from an earlier run, if that ran this job on one GPU."""
    job = _alone(result.job)
    if job is None or _alone(earlier.job) != job:
        return {}
    return {
        figure.gpu_index: figure.images_per_sec
        for figure in past_speeds([earlier])
        if figure.gpu_index is not None and figure.batch == result.batch_size
    }


def _alone(job: JobSpec) -> tuple[object, ...] | None:
    """Return the parts of a job that decide the speed of one GPU; None for other training cores."""
    if not isinstance(job, RunSpec):
        return None
    return job.model, job.task, job.method, job.strategy, job.precision, job.data, job.data_format


def _of_earlier_runs(job: RunSpec, past: Sequence[Result], where: str) -> Expected | None:
    rates = [
        one.throughput.median
        for one in past
        if one.throughput is not None and _counts(one) and _speed_of(one.job) == _speed_of(job)
    ][:MAX_RUNS]
    if not rates:
        return None
    rate = median(rates)
    runs = "an earlier run" if len(rates) == 1 else f"the median of {len(rates)} earlier runs"
    differ = SAME_CPU_RUN if job.backend == "cpu" else SAME_RUN
    low, high = min(*rates, (1 - differ) * rate), max(*rates, (1 + differ) * rate)
    return Expected(images_per_sec=rate, low=low, high=high, source=f"{runs} of this job on {where}")


def _counts(result: Result) -> bool:
    """Return whether a run shows what this machine can do: complete, undisturbed and not slow."""
    speed, host = result.throughput, result.host_load
    if result.status != "complete" or speed is None or not speed.median > 0 or result.is_slow:
        return False
    quiet = host is None or host.busy is None
    return quiet and not result.spec.get("drills") and speed.uncertainty <= MAX_UNCERTAINTY * speed.mean


def _speed_of(job: JobSpec) -> tuple[object, ...] | None:
    """Return the parts of a job that decide the speed of its steps; None for other training cores."""
    if not isinstance(job, RunSpec):
        return None
    return (
        *(job.backend, job.rehearsal_of, job.batch_size, job.runtime, job.exchange),
        *(job.variable_update, job.ps_device, job.all_reduce, job.optimization.optimizer),
        _alone(job),
        [(one.tower, one.gpu) for one in job.devices],
        together(job),
    )


def _of_the_plan(job: RunSpec, plan: Plan, batches: Sequence[int]) -> Expected | None:
    choice = plan.choice
    rate, low, high = choice.images_per_sec, choice.images_per_sec_low, choice.images_per_sec_high
    planned = choice.batch_sizes or (plan.prediction.batch_size if plan.prediction else 0,) * len(batches)
    if rate is None or low is None or high is None or why_unpredicted(job) or planned != tuple(batches):
        return None
    return Expected(images_per_sec=rate, low=low, high=high, source="predicted by the plan")


def _of_others(job: RunSpec, devices: Sequence[Device], batches: Sequence[int]) -> Expected | None:
    if job.drills or job.task != "train" or len(set(batches)) != 1:
        return None
    names = [_model(device.gpu_name) for device in devices]
    rows = [
        row
        for row in published_figures()
        if _is_alike(row, job, batches[0])
        if [_model(_gpu_names(row.machine).get(gpu)) for gpu in row.gpus] == names
    ]
    if None in names or not rows:
        return None
    rates = [row.images_per_sec for row in rows]
    sources = ", ".join(dict.fromkeys(row.source for row in rows))
    return Expected(
        images_per_sec=median(rates),
        low=min(rates) / SAME_JOB,
        high=max(rates) * SAME_JOB,
        source=f"published for the same GPUs ({sources})",
    )


@functools.cache
def _gpu_names(machine: str) -> Mapping[int, str | None]:
    """Return the GPU models of a published machine."""
    if machine in bundled_names():
        return {gpu.index: gpu.name for gpu in read_bundled(machine).gpus}
    published_machine = published_machines()[machine]
    return dict.fromkeys(range(published_machine.count), published_machine.gpu)


def _is_alike(row: Published, job: RunSpec, batch: int) -> bool:
    mine = (job.model, batch, job.precision.compute, job.precision.xla)
    return (
        not row.is_suspect
        and job.data.is_free
        and row.data == "synthetic"
        and (row.model, row.batch_per_gpu, row.precision, row.xla) == mine
        and (row.variable_update, row.all_reduce) == (job.variable_update, job.all_reduce)
    )


def _model(name: str | None) -> str | None:
    gpu = expected_gpu(name)
    return None if gpu is None else gpu.name


def _speeds(
    job: RunSpec,
    devices: Sequence[Device],
    batches: Sequence[int],
    machine: Machine,
    past: Sequence[Result],
    workload: Workload | None,
) -> dict[int, Expected]:
    """Return the images/sec of each device by itself, by tower, if the devices are of several models."""
    compute = job.precision.compute
    if workload is None or len({device.gpu_name for device in devices}) < 2:
        return {}
    figures = past_speeds(one for one in past if _counts(one))
    found = {}
    for device, batch in zip(devices, batches, strict=True):
        speeds = single_gpu_speeds(machine, workload, batch, compute, history=figures)
        speed = None if device.gpu is None else speeds.get(device.gpu)
        if speed is not None:
            found[device.tower] = Expected(
                images_per_sec=speed.images_per_sec, low=speed.low, high=speed.high, source=speed.source
            )
    return found


def _sharing(devices: Sequence[Device], machine: Machine) -> dict[int, tuple[int, ...]]:
    """Return, by tower, the towers whose GPUs share its link to the host, if there are any."""
    uplinks = paths_of(machine).uplinks
    found = {}
    for device in devices:
        others = tuple(
            other.tower
            for other in devices
            if other != device and any({device.gpu, other.gpu} <= uplink.gpus for uplink in uplinks)
        )
        if others:
            found[device.tower] = others
    return found
