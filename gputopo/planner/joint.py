"""The step of several hosts: the step of the slowest host, and the exchange over the network.

The rate is the measured rate between the hosts, else the rate of their cards. Only exchanges by rings are
predicted.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, cast

import msgspec

from gputopo.planner.candidates import margin_of
from gputopo.planner.choose import basis_of
from gputopo.planner.chooser import Basis
from gputopo.planner.network import (
    HostNetwork,
    NetworkRate,
    SavedNetwork,
    hosts_in_words,
    network_rate,
    rate_in_words,
)
from gputopo.planner.ranges import EXCHANGE, combined
from gputopo.planner.reasons import UNPREDICTED, unpredicted_reason
from gputopo.planner.request import Request, batches
from gputopo.prediction import BY_NCCL, Placement, network_exchange_s
from gputopo.values.index_ranges import gpu_ranges
from gputopo.values.run.all_reduce import NCCL
from gputopo.values.run.batches import AUTO
from gputopo.values.run.plan import SURE_MARGIN, Candidate, HostGpus, Plan, Prediction, VariableUpdate


def choice_of_hosts(request: Request, hosts: tuple[HostGpus, ...]) -> Candidate:
    """Return the choice for all hosts, given by rank, without a predicted step."""
    counts = [host.devices for host in hosts]
    even = len(set(counts)) == 1
    shares = f"{counts[0]} of each" if even else f"unequal, {min(counts)} to {max(counts)} of each"
    names: dict[str, list[str]] = {}  # of hosts with the same GPUs
    for host in hosts:
        if host.gpus:
            names.setdefault(gpu_ranges(host.gpus), []).append(host.host)
    return msgspec.structs.replace(
        _placements(request, hosts)[0],
        reasons=(
            f"{sum(counts)} devices of {len(counts)} hosts: {shares}",
            *(f"{hosts_in_words(same)}: {gpus}" for gpus, same in names.items()),
        ),
        hosts=hosts,
    )


def with_predicted_steps(
    plan: Plan,
    plans: Sequence[Plan],
    hosts: Sequence[HostNetwork],
    request: Request,
    saved: SavedNetwork | None,
) -> Plan:
    """Return the plan for all hosts with predicted steps or what is missing; with NCCL if its rate is known.

    `plans`: the plan of each host. NCCL needs the same number of GPUs on each host, as TensorFlow's strategy
    does.
    """
    choice, gpus = plan.choice, [host_plan.choice.gpus for host_plan in plans]
    ways = (True, False) if len({*map(len, gpus)}) == 1 else (False,)
    rates = {nccl: network_rate(hosts, gpus, saved, nccl=nccl) for nccl in ways}
    known = {nccl: rate for nccl, rate in rates.items() if isinstance(rate, NetworkRate)}
    first = msgspec.structs.replace(
        request,
        num_gpus=None,
        gain=None,
        gpus=gpus[0],
        exclude=(),
        batch_size=None if request.batch_size == AUTO else request.batch_size,
    )
    basis = basis_of(hosts[0].machine, first, (), None)
    missing = _missing(choice, plans, basis, most=max(map(len, gpus)))
    if missing is None and not isinstance(rate := rates.get(choice.all_reduce == NCCL, ""), NetworkRate):
        missing = rate
    if missing is not None:
        why = (f"{UNPREDICTED}: {missing}",) if missing else ()
        choice = msgspec.structs.replace(choice, reasons=(*choice.reasons, *why))
        return msgspec.structs.replace(plan, choice=choice, candidates=(choice,))
    speeds = [speed for host_plan in plans for speed in speeds_of(host_plan)]
    sizes = iter(batches(request.batch_size, basis.batch, speeds))
    parts = [HostPart(host_plan, tuple(islice(sizes, len(host_plan.choice.gpus)))) for host_plan in plans]
    predictions = [
        predicted(msgspec.structs.replace(candidate, hosts=choice.hosts), parts, basis, known[way])
        for candidate in _placements(request, choice.hosts)
        if (way := candidate.all_reduce == NCCL) in known
    ]
    chosen, *rest = sorted(predictions, key=lambda candidate: candidate.all_reduce != NCCL)
    nccl = chosen.all_reduce == NCCL
    reasons = (*choice.reasons, *scaling(chosen, plans[0].choice), rate_in_words(known[nccl], nccl=nccl))
    if chosen.all_reduce == "hierarchical" and len(ways) == 1:
        reasons = (*reasons, "NCCL between hosts takes equal numbers of GPUs on each: --num-gpus")
    candidates = (msgspec.structs.replace(chosen, reasons=reasons), *rest)
    return msgspec.structs.replace(
        plan, choice=candidates[0], candidates=candidates, prediction=_prediction(plans, candidates)
    )


def _missing(choice: Candidate, plans: Sequence[Plan], basis: Basis, *, most: int) -> str | None:
    """Return why no step is predicted ("": not requested), else None. `most`: GPUs of the largest host."""
    if basis.missing is not None:
        return basis.missing
    if choice.all_reduce not in (NCCL, "hierarchical" if most > 1 else "copy"):
        return "for several hosts, only ring reductions can be predicted"
    for host, plan in zip(choice.hosts, plans, strict=True):
        if plan.choice.images_per_sec is None:
            return f"{host.host}: {unpredicted_reason(plan.choice).removeprefix(f'{UNPREDICTED}: ')}"
    return None


class HostPart(NamedTuple):
    """What one host trains with: its own plan with a predicted step, and the examples of each GPU."""

    plan: Plan
    batch_sizes: tuple[int, ...]

    @property
    def step_ms(self) -> float:
        """The step of this host without the network, with these examples."""
        assert self.plan.choice.images_per_sec is not None
        return 1e3 * sum(self.batch_sizes) / self.plan.choice.images_per_sec


def predicted(candidate: Candidate, parts: Sequence[HostPart], basis: Basis, rate: NetworkRate) -> Candidate:
    """Return a candidate for all hosts with its predicted step. `rate`: of the slowest network path."""
    slowest = max(parts, key=lambda part: part.step_ms)
    alone, step_ms = slowest.plan.choice, slowest.step_ms
    nccl = candidate.all_reduce == NCCL
    exchanged_s = network_exchange_s(
        basis.model, basis.program, step_ms / 1e3, len(parts), rate.gb_per_s, nccl=nccl
    )
    # One exchange uses all links, within the hosts and between them; the slowest one limits it.
    within = ("gradients", "variables") if nccl else ("gradients",)
    within_ms = sum(alone.exposed_ms.get(part, 0.0) for part in within)
    network_ms = round(max(0.0, 1e3 * exchanged_s - within_ms), 4)
    step_ms += network_ms
    batches = [size for part in parts for size in part.batch_sizes]
    speed = 1e3 * sum(batches) / step_ms
    links, limited_by = dict(alone.links), alone.limited_by
    if network_ms:
        links["network"] = f"network of {rate.host}"
        if network_ms > max(SURE_MARGIN * step_ms, *alone.exposed_ms.values()):
            limited_by = links["network"]
    low = high = None
    if alone.images_per_sec and alone.images_per_sec_high:
        factor = combined(alone.images_per_sec_high / alone.images_per_sec, EXCHANGE)
        low, high = round(speed / factor, 2), round(speed * factor, 2)
    return msgspec.structs.replace(
        candidate,
        evidence="predicted",
        images_per_sec=round(speed, 2),
        images_per_sec_low=low,
        images_per_sec_high=high,
        speedup=round(speed / max(speed_alone for part in parts for speed_alone in speeds_of(part.plan)), 3),
        step_ms=round(step_ms, 4),
        batch_sizes=tuple(batches) if len(set(batches)) > 1 else (),
        compute_ms=alone.compute_ms,
        exposed_ms={**alone.exposed_ms, "network": network_ms},
        links=links,
        limited_by=limited_by,
    )


def speeds_of(plan: Plan) -> list[float]:
    """Return the images/sec of each chosen GPU by itself."""
    assert plan.prediction is not None
    return [plan.prediction.single_gpu_images_per_sec[gpu] for gpu in plan.choice.gpus]


def _prediction(plans: Sequence[Plan], candidates: Sequence[Candidate]) -> Prediction:
    """Return the prediction of candidates for all hosts; the speeds of single GPUs are by tower."""
    each = [plan.prediction for plan in plans if plan.prediction is not None]
    return msgspec.structs.replace(
        each[0],
        single_gpu_images_per_sec=dict(enumerate(speed for plan in plans for speed in speeds_of(plan))),
        single_gpu_source=" + ".join(dict.fromkeys(prediction.single_gpu_source for prediction in each)),
        margin=margin_of(candidates),
        fewer=None,
    )


def _placements(request: Request, hosts: Sequence[HostGpus]) -> list[Candidate]:
    """Return the possible placements on hosts, given by rank, the default first.

    By default every device has its own copy, and gradients are added within each host first, or by NCCL's
    rings over all hosts. A parameter server would send the weights of all devices over the network in every
    step.
    """
    update, ps = request.variable_update, "cpu" if request.ps == "auto" else request.ps
    several = max(host.devices for host in hosts) > 1
    reduction = request.all_reduce or ("hierarchical" if several else "copy")
    if update == "auto":
        update = "replicated" if request.ps == "auto" or request.all_reduce else "parameter_server"
    first = Placement(
        cast(VariableUpdate, update),
        ps if update == "parameter_server" else None,
        reduction if update == "replicated" else None,
    )
    is_free = (request.variable_update, request.ps, request.all_reduce) == ("auto", "auto", None)
    placings = dict.fromkeys((first, *((BY_NCCL,) if is_free else ())))
    return [Candidate(gpus=hosts[0].gpus, **placing._asdict()) for placing in placings]


def scaling(chosen: Candidate, alone: Candidate) -> list[str]:
    """Return the speedup of all hosts over the first host, and the network's part of a step."""
    if not chosen.images_per_sec or not alone.images_per_sec:
        return []
    times, first = chosen.images_per_sec / alone.images_per_sec, chosen.hosts[0].host
    return [
        f"{len(chosen.hosts)} hosts are {times:.2f} times as fast as {gpu_ranges(alone.gpus)} of {first} "
        f"alone ({alone.images_per_sec:,.0f} images/sec); the network takes "
        f"{chosen.exposed_ms['network']:.1f} ms of a step of {chosen.step_ms:.1f} ms"
    ]
