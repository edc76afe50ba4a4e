"""How gradients get from host to host where nothing was asked for: the faster of two ways, by their times."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import tensorflow as tf

from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.models.models import shapes_of
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.op_errors import first_line
from gputopo.launch.train.placement.devices import joined
from gputopo.launch.train.reductions.methods import reducer_of
from gputopo.launch.train.reductions.reducer import self_test
from gputopo.launch.train.reductions.timing import Bench
from gputopo.values.errors import HardwareError
from gputopo.values.run.events import EXCHANGE, Event, PhaseBegun

Emit = Callable[[Event], None]

COPIES = "copies"
ROUNDS = 5
LIMIT_S = 5.0  # no further round after it, so that a slow network costs two exchanges of each
TIE = 0.05  # of the time of copies: the other must be faster by more


@dataclass(frozen=True)
class Chosen:
    """The run with its reduction, and what was measured."""

    spec: RunSpec
    says: tuple[str, ...] = ()


@contextmanager
def joined_fastest(spec: RunSpec, emit: Emit) -> Iterator[Chosen]:
    """Join the servers of the other hosts as `devices.joined`, with the faster exchange where it is open.

    Collectives need the process to be a client, copies are faster without: where copies win it joins again,
    as rank 0 with another address. Raises as `joined`, and what the reduction by copies raises.
    """
    other = by_collectives(spec)
    if other is None:
        with joined(spec):
            yield Chosen(spec)
        return
    assert other.all_reduce is not None
    emit(PhaseBegun(time_s=time.time(), phase=EXCHANGE))
    with joined(other):
        ways = {COPIES: spec, other.all_reduce: other}
        seconds, failed = _timed(ways)
        way = fastest(seconds)
        says = (said(seconds, failed, way),)
        if way != COPIES:
            yield Chosen(other, says)
            return
    gc.collect()  # what is left on the servers cannot be deleted later
    with joined(_moved(spec)):
        yield Chosen(spec, says)


def by_collectives(spec: RunSpec) -> RunSpec | None:
    """Return the same run with collectives between its hosts, None where nothing is open."""
    own_towers = spec.rank is None and spec.variable_update == "replicated"
    reduces = spec.task == "train" and own_towers and len(spec.ranks) > 1
    if not reduces or "all_reduce" in spec.asked or spec.all_reduce not in (None, "copy", "hierarchical"):
        return None
    name = "nccl" if spec.backend == "gpu" else "collective"
    return msgspec.structs.replace(spec, all_reduce=name)


def fastest(seconds: Mapping[str, float]) -> str:
    """Return the fastest way; copies unless another is faster by more than `TIE`."""
    best = min(seconds, key=lambda way: seconds[way])
    return best if seconds[best] < (1 - TIE) * seconds[COPIES] else COPIES


def said(seconds: Mapping[str, float], failed: Mapping[str, str], way: str) -> str:
    """Return the times of an exchange of all gradients, and which way is used."""
    found = [f"{name} {1e3 * one:.{0 if one >= 0.01 else 1}f} ms" for name, one in seconds.items()]
    found += [f"{name} failed ({why})" for name, why in failed.items()]
    return f"exchange between hosts: {', '.join(found)}: {way}"


def _timed(ways: Mapping[str, RunSpec]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the median seconds of each way to exchange all gradients, and why one has none."""
    spec = ways[COPIES]
    devices = [device.device for device in spec.devices]
    bench = Bench(shapes_of(spec.model, spec), devices)
    calls: dict[str, Callable[[], float]] = {}
    failed: dict[str, str] = {}
    began = time.perf_counter()
    for way, one in ways.items():
        try:
            calls[way] = _warm_call(bench, one, devices)
        except (HardwareError, tf.errors.OpError) as error:
            if way == COPIES:
                raise
            failed[way] = error.what if isinstance(error, HardwareError) else first_line(str(error))
    if failed:  # copies are all there is, and what was aborted may disturb them
        return {COPIES: calls[COPIES]()}, failed
    found: dict[str, list[float]] = {way: [] for way in calls}
    while len(found[COPIES]) < ROUNDS and (not found[COPIES] or time.perf_counter() - began < LIMIT_S):
        for way, call in calls.items():
            found[way].append(call())
    return {way: statistics.median(one) for way, one in found.items()}, failed


def _warm_call(bench: Bench, spec: RunSpec, devices: Sequence[str]) -> Callable[[], float]:
    """Test the sums of a reduction, and call it once."""
    name = spec.all_reduce or "copy"
    reducer = reducer_of(name, devices, spec.exchange)
    self_test(reducer, name, devices, spec.exchange.transfer)
    call = bench.call_of(reducer)
    call()
    return call


def _moved(spec: RunSpec) -> RunSpec:
    """Return the run with another address of rank 0: TensorFlow cannot end a server, and the first has it."""
    own, *others = spec.servers
    address = f"{own.address.rpartition(':')[0]}:{free_port()}"
    return msgspec.structs.replace(spec, servers=(msgspec.structs.replace(own, address=address), *others))
