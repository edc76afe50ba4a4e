"""The step of several hosts: the slowest host's own, and what they exchange over the network. Pure.

By the formula of a ring every host sends 2 (H - 1) / H of the bytes of a model, at the rate that was measured
between the hosts or that their cards have. Parameter servers and copies of all devices send more. What the
network adds is the step with it, less the step with a network that takes no time.
"""

from collections.abc import Sequence
from math import inf
from operator import itemgetter
from typing import NamedTuple, cast

import msgspec

from gputopo.planner.candidates import exposed_s, links_in_words, prediction_of, with_step
from gputopo.planner.choose import basis_of
from gputopo.planner.chooser import Basis
from gputopo.planner.how_many import doublings
from gputopo.planner.network import hosts_in_words, rates_in_words
from gputopo.planner.request import Request, batches
from gputopo.prediction.links.flows import GB
from gputopo.prediction.links.hosts import NetworkRate
from gputopo.prediction.links.paths import Limit, paths_of
from gputopo.prediction.one_gpu_speeds import why_unknown
from gputopo.prediction.ranges import range_of
from gputopo.prediction.step import NCCL as NCCL_RINGS
from gputopo.prediction.step import ON_CPU, Placement, StepPredictor, StepSeconds, limits
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine
from gputopo.values.run.all_reduce import NCCL
from gputopo.values.run.batches import AUTO
from gputopo.values.run.plan import (
    HOST_PS,
    SPREAD,
    SURE_MARGIN,
    Candidate,
    Prediction,
    VariableUpdate,
)

# Places that are compared with the default where nothing is asked for: on more GPUs each other copy is one of
# thousands, and all but the default send more over the network.
MAX_COMPARED = 64


class HostPart(NamedTuple):
    """What one host trains with."""

    name: str
    machine: Machine
    gpus: tuple[int, ...]


class _Exchange(NamedTuple):
    """A placement within each host, and what each host sends to the others: bytes over the model's."""

    placing: Placement
    weights: tuple[float, ...]
    gradients: tuple[float, ...]


class Joint:
    """The predicted steps of the GPUs of several hosts."""

    def __init__(
        self,
        parts: Sequence[HostPart],
        bases: Sequence[Basis],
        rates: Sequence[NetworkRate],
        nccl: Sequence[NetworkRate],
        batch_sizes: tuple[int, ...],
    ) -> None:
        """`nccl`: rates of its rings, () if unknown. `batch_sizes`: examples of each GPU, by towers."""
        self.parts, self._bases, self.rates, self._batches = parts, bases, rates, batch_sizes
        self.nccl = nccl
        self._paths = [paths_of(part.machine) for part in parts]
        self._own = [(basis, gpu) for part, basis in zip(parts, bases, strict=True) for gpu in part.gpus]
        self._speeds = [basis.speeds[gpu] for basis, gpu in self._own]
        each = zip(self._own, batch_sizes, strict=True)
        self.compute_s = max(basis.seconds(gpu, batch) for (basis, gpu), batch in each)

    def reasons(self, chosen: Candidate) -> list[str]:
        """Return the network of the hosts in words, as the chosen candidate uses it."""
        by = {"by": "NCCL reaches"} if chosen.all_reduce == NCCL else {}
        return rates_in_words([part.name for part in self.parts], self._rates_of(chosen), **by)

    def _rates_of(self, candidate: Candidate) -> Sequence[NetworkRate]:
        return self.nccl if candidate.all_reduce == NCCL else self.rates

    def candidate(self, candidate: Candidate) -> Candidate:
        """Return a candidate of these GPUs with its predicted step."""
        exchange, rates = self._exchange(candidate), self._rates_of(candidate)
        step = self._step(exchange, [rate.gb_per_s for rate in rates])
        alone = self._step(exchange, [inf] * len(rates))
        links = links_in_words(alone, exchange.placing, self._paths[0])
        if step.step_s > alone.step_s:
            sent = [share / rate.gb_per_s for share, rate in zip(exchange.gradients, rates, strict=True)]
            links["network"] = f"network of {self.parts[sent.index(max(sent))].name}"
        return with_step(
            msgspec.structs.replace(
                candidate,
                evidence="predicted",
                batch_sizes=self._batches if len(set(self._batches)) > 1 else (),
            ),
            step,
            sum(self._batches),
            self._speeds,
            range_of(self._speeds, exchanges=True),
            {**exposed_s(alone), "network": step.step_s - alone.step_s},
            links,
        )

    def images_per_sec(self, candidate: Candidate) -> float:
        """Return the predicted speed of a candidate of these GPUs."""
        rates = [rate.gb_per_s for rate in self._rates_of(candidate)]
        return sum(self._batches) / self._step(self._exchange(candidate), rates).step_s

    def prediction(self, candidates: Sequence[Candidate]) -> Prediction:
        """Return from what the candidates were predicted; speeds of one GPU by the number of its tower."""
        return prediction_of(self._bases[0], dict(enumerate(self._speeds)), self._speeds, candidates)

    def of_first(self, hosts: int) -> "Joint":
        """Return the steps of the first of the hosts alone."""
        parts, towers = self.parts[:hosts], sum(len(part.gpus) for part in self.parts[:hosts])
        rates, nccl = self.rates[:hosts], self.nccl[:hosts]
        return Joint(parts, self._bases[:hosts], rates, nccl, self._batches[:towers])

    def _exchange(self, candidate: Candidate) -> _Exchange:
        """Return what a candidate exchanges within each host and between them."""
        towers, counts = len(self._own), [len(part.gpus) for part in self.parts]
        device, reduction = candidate.ps_device, (candidate.all_reduce or "").partition("#")[0]
        if candidate.variable_update == "independent":
            return _Exchange(Placement("independent"), *[(0.0,) * len(counts)] * 2)
        if device is not None or reduction in ("pscpu", "one_device"):
            home = int(device.removeprefix(HOST_PS)) if device and device.startswith(HOST_PS) else 0
            sent = tuple(
                float(towers - count if rank == home else count) for rank, count in enumerate(counts)
            )
            placing = Placement("parameter_server", SPREAD if device == SPREAD else "cpu")
            return _Exchange(placing, sent, sent)
        if reduction in ("copy", "psgpu"):
            sent = tuple(count * (towers - count) / towers for count in counts)
            return _Exchange(Placement("replicated", None, "copy"), sent, sent)
        once = ((len(counts) - 1) / len(counts),) * len(counts)
        if reduction == NCCL:
            twice = tuple(2 * share for share in once)
            return _Exchange(Placement("replicated", None, NCCL), (0.0,) * len(counts), twice)
        return _Exchange(Placement("replicated", None, "copy"), once, once)

    def _step(self, exchange: _Exchange, gb_per_s: Sequence[float]) -> StepSeconds:
        """Return the step. `gb_per_s`: of each host's network."""
        basis, most = self._bases[0], max(len(part.gpus) for part in self.parts)
        cpus = self._paths[0].cpus
        stepper = StepPredictor(basis.model, basis.program, len(self._own), cpus, of_host=most)
        each = [
            limits(paths, part.gpus, exchange.placing)
            for paths, part in zip(self._paths, self.parts, strict=True)
        ]
        slowest: list[Limit] = []
        for part, shares in enumerate((exchange.weights, exchange.gradients)):
            by, seconds = max((one[part] for one in each), key=itemgetter(1))
            sent = (share / (rate * GB) for share, rate in zip(shares, gb_per_s, strict=True))
            slowest.append((by, max(seconds, *sent)))
        weights, gradients = slowest
        return stepper.step(exchange.placing, self.compute_s, weights, gradients)


def joint_of(
    parts: Sequence[HostPart],
    request: Request,
    rates: Sequence[NetworkRate] | str,
    nccl: Sequence[NetworkRate] | str = (),
) -> Joint | str | None:
    """Return the predicted steps of hosts, or the fact that is missing; None: nothing is asked for.

    `nccl`: rates of its rings.
    """
    bases: list[Basis] = []
    for part in parts:
        own = msgspec.structs.replace(request, num_gpus=None, gain=None, gpus=part.gpus, exclude=())
        own = own if request.batch_size != AUTO else msgspec.structs.replace(own, batch_size=None)
        basis = basis_of(part.machine, own, (), None)
        if basis.missing is not None:
            return f"{part.name}: {basis.missing}" if basis.missing else None
        unknown = (gpu for gpu in part.machine.gpus if gpu.index in {*part.gpus} - {*basis.speeds})
        if gpu := next(unknown, None):
            return f"{part.name}: {why_unknown(gpu)}"
        bases.append(basis)
    if isinstance(rates, str):
        return rates
    if isinstance(nccl, str):
        if request.all_reduce == NCCL:
            return nccl
        nccl = ()
    speeds = [
        basis.speeds[gpu].images_per_sec
        for part, basis in zip(parts, bases, strict=True)
        for gpu in part.gpus
    ]
    return Joint(parts, bases, rates, nccl, batches(request.batch_size, bases[0].batch, speeds))


def places(request: Request, gpus: Sequence[int], most: int) -> list[Candidate]:
    """Return where variables may be, the default first. `gpus`: of rank 0; `most`: of any host.

    By default every device has its own copy, and gradients are added within each host first: with a parameter
    server all weights of all devices would go over the network in every step, too.
    """
    update, ps = request.variable_update, "cpu" if request.ps == "auto" else request.ps
    reduction = request.all_reduce or ("hierarchical" if most > 1 else "copy")
    if update == "auto":
        update = "replicated" if request.ps == "auto" or request.all_reduce else "parameter_server"
    first = Placement(
        cast(VariableUpdate, update),
        ps if update == "parameter_server" else None,
        reduction if update == "replicated" else None,
    )
    others = (
        NCCL_RINGS,
        Placement("replicated", None, "copy"),
        ON_CPU,
        Placement("parameter_server", SPREAD),
    )
    asked = request.variable_update != "auto" or request.ps != "auto" or request.all_reduce is not None
    placings = dict.fromkeys((first, *(() if asked else others)))
    return [Candidate(gpus=tuple(gpus), **placing._asdict()) for placing in placings]


def gpus_of_hosts(names: Sequence[str], choices: Sequence[Candidate]) -> list[str]:
    """Return the GPUs of each host, hosts with the same together."""
    alike: dict[str, list[str]] = {}
    for name, choice in zip(names, choices, strict=True):
        if choice.gpus:
            alike.setdefault(_gpus(choice), []).append(name)
    return [f"{hosts_in_words(of)}: {words}" for words, of in alike.items()]


def scaling(chosen: Candidate, alone: Candidate, first: str) -> list[str]:
    """Return how many times as fast as the first host alone all are, and the network's part of a step."""
    if not chosen.images_per_sec or chosen.step_ms is None or not alone.images_per_sec:
        return []
    network = chosen.exposed_ms.get("network", 0.0)
    times = chosen.images_per_sec / alone.images_per_sec
    return [
        f"{len(chosen.hosts)} hosts are {times:.2f} times as fast as {_gpus(alone)} of {first} "
        f"alone ({alone.images_per_sec:,.0f} images/sec); the network takes {network:.1f} ms of a step of "
        f"{chosen.step_ms:.1f} ms"
    ]


def fewer_hosts(chosen: Candidate, steps: Joint, alone: Candidate) -> list[str]:
    """Return which number of hosts, 1, 2, 4, ... of the first ones, would be as fast; none where none is."""
    if (chosen.ps_device or "").startswith(HOST_PS):
        return []  # that host must take part
    all_of_them = chosen.images_per_sec or 0.0
    for count in doublings(len(chosen.hosts))[:-1]:
        speed = alone.images_per_sec or 0.0 if count == 1 else steps.of_first(count).images_per_sec(chosen)
        if speed > (1 - SURE_MARGIN) * all_of_them:
            devices = sum(one.devices for one in chosen.hosts[:count])
            names = hosts_in_words([one.host for one in chosen.hosts[:count]])
            how = "faster" if speed > all_of_them else "as fast"
            return [
                f"{names} alone would be {how}: {speed:.0f} instead of {all_of_them:.0f} "
                f"images/sec (--num-gpus {devices})"
            ]
    return []


def _gpus(choice: Candidate) -> str:
    return f"GPU{'' if len(choice.gpus) == 1 else 's'} {index_ranges(sorted(choice.gpus))}"
