"""The table of all reductions by name, and the reduction of a run.

Each builder takes the devices and its options, and returns a `Reducer`. Variables that it needs are made at
once, before any graph.
"""

from collections.abc import Callable, Sequence

from gputopo.launch.jobs.reduction_worker import options_of
from gputopo.launch.spec.run_spec import Exchange
from gputopo.launch.train.reductions.collectives import collective, nccl_op, one_device, tf_hierarchical
from gputopo.launch.train.reductions.copies import copy, hierarchical, pscpu, psgpu, ring
from gputopo.launch.train.reductions.packing import narrowed, repacked, small_joined
from gputopo.launch.train.reductions.reducer import Reducer
from gputopo.values.run.all_reduce import parse

ALGORITHMS: dict[str, Callable[..., Reducer]] = {
    "copy": copy,
    "ring": ring,
    "hierarchical": hierarchical,
    "pscpu": pscpu,
    "psgpu": psgpu,
    "collective": collective,
    "nccl_op": nccl_op,
    "tf_hierarchical": tf_hierarchical,
    "one_device": one_device,
}


def reducer_of(name: str, devices: Sequence[str], exchange: Exchange) -> Reducer:
    """Return the reduction of a run, with the wrappers of its exchange.

    From outside: float16, repacking, small gradients joined, the reduction itself. With one device nothing
    is to be reduced and nothing travels.
    """
    if len(devices) == 1:
        return lambda gradients: [list(values) for values in gradients]
    algorithm, options = options_of(parse(name), exchange.groups)
    reducer = ALGORITHMS[algorithm](devices, **options)
    if exchange.small_bytes:
        reducer = small_joined(reducer, devices, exchange.small_bytes, exchange.small_group)
    if exchange.repacking:
        reducer = repacked(reducer, devices, exchange.repacking)
    return narrowed(reducer, devices) if exchange.transfer == "fp16" else reducer
