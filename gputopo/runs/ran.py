"""What a run really did, in words that can be compared with the request."""

from typing import Any

from gputopo.values.run.all_reduce import MEANINGS, parse
from gputopo.values.run.program import OWN_TRAINER, ProgramSpec
from gputopo.values.run.spec import JobSpec, RunSpec

_NOTHING = "nothing: there is one device"
_MADE = {"cpu": "made on the CPU", "python": "made in Python"}


def what_ran(job: JobSpec) -> dict[str, Any]:
    """Return by name: trainer, variables, exchange, numbers, data; empty for an invalid spec.

    The worker refuses what it cannot do as requested, so the spec of a finished run is what ran.
    `all_reduce_by` describes the method, because one name may mean different methods on different backends.
    """
    if isinstance(job, ProgramSpec):
        return {"task": job.task, "program": list(job.command)}
    if not isinstance(job, RunSpec):
        return {}
    data = data_words(job)
    if job.task == "input":
        return {"task": job.task, "data": data}
    ran: dict[str, Any] = {"task": job.task}
    trains = job.task not in ("forward", "eval")
    if trains:
        other = f"method {job.method}" if job.method else job.strategy and f"strategy {job.strategy}"
        ran["trainer"] = other or OWN_TRAINER
    if job.strategy is None:
        variables = "a copy on each device"
        if job.variable_update == "parameter_server":
            variables = "spread over the devices" if job.exchange.ps_spread else job.ps_device or "unknown"
        ran |= {"variable_update": job.variable_update, "variables": variables}
    if trains:
        if reduction := job.all_reduce:
            ran["all_reduce"] = reduction
            method = MEANINGS.get(reduction.partition("#")[0])
            ran["all_reduce_by"] = _NOTHING if len(job.devices) == 1 else method
        if job.all_reduce or job.strategy or job.variable_update == "parameter_server":
            ran["grad_reduce"] = job.grad_reduce
        ran["exchange"] = exchange_words(job) or None
    precision = job.precision
    ran |= {"precision": precision.compute, "xla": precision.xla, "data_format": job.data_format}
    if trains:
        if precision.compute == "fp16":
            ran["loss_scale"] = "auto" if precision.auto_loss_scale else precision.loss_scale
        ran["optimizer"] = job.optimization.optimizer
    ran["data"] = data
    return {name: value for name, value in ran.items() if value is not None}


def exchange_words(job: RunSpec) -> list[str]:
    """Return the options of the exchange that are not its mode's default."""
    exchange = job.exchange
    # Between hosts and with NCCL, small gradients are joined by default (`launch.spec.prepare`).
    by_nccl = job.all_reduce is not None and parse(job.all_reduce).is_by_nccl
    joined = (bool(job.servers) or by_nccl) and "agg_small_grads_max_bytes" not in job.asked
    groups = " | ".join(",".join(map(str, group)) for group in exchange.groups)
    size, count = exchange.small_bytes, exchange.small_group
    words = {
        "staged, stale by one step": exchange.staged,
        "relaxed, gradients of the previous step": exchange.relaxed,
        "asynchronous": exchange.asynchronous,
        f"gradients as {exchange.repacking} chunks": exchange.repacking,
        f"gradients up to {size} bytes joined, {count} at a time": size and not joined,
        "gradients travel as float16": exchange.transfer == "fp16",
        f"groups {groups}": groups and job.all_reduce == "hierarchical",
    }
    return [text for text, is_so in words.items() if is_so]


def data_words(job: RunSpec) -> str:
    """Return the source of the examples."""
    data = job.data
    on_host = ", one batch on the host" if job.method else ""  # at the start of a step
    if data.folder:
        distorted = ", distorted" if data.distortions else ""
        cached = f", cached {data.cache}" if data.cache else ""
        return f"{data.name or 'examples'} from {data.folder}{distorted}{cached}{on_host}"
    made = _MADE.get(data.source, "made once" if job.method else "created once on the device")
    feed = f", {data.feed}" if data.source == "python" else ""
    return f"synthetic, {made}{feed}{on_host}"
