"""Runs reductions for the tests: `python -m tests.launch.train.reduction_cases DEVICES OUT_FOLDER TIMED`.

For each method that has an algorithm for CPU devices, and for what can be put round one,
OUT_FOLDER/name.npz holds what was added (`given{variable}`, [devices, ...]) and every device's sums
(`got{variable}`). OUT_FOLDER/reported.json holds the results of the checks, and which ops that stand on the
towers' devices have no kernel for GPUs. TIMED is 1 if the methods are timed as well, as `bandwidth
--allreduce` does; then the kernels are looked up.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.values.errors import GputopoError
from gputopo.values.run.all_reduce import NAMES
from gputopo.values.run.events import Device
from gputopo.values.run.spec import Exchange, RunSpec
from tests.launch.train.gpu_kernels import without_gpu_kernel
from tests.launch.train.small_model import SHAPES as SMALL_MODEL

SHAPES = ((3, 5, 2), (1,), (), (401, 300), (40, 31), (7,), (7,))  # the large one is worth cutting
METHODS = (*NAMES, "ring#2", "psgpu#2")
ON_CPU = tuple(name for name in METHODS if not name.startswith("nccl"))
WRAPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "copy in parts": ("copy", {}),
    "copy in 4": ("copy", {"repacking": 4}),
    "ring#3 in 5": ("ring#3", {"repacking": 5}),
    "collective joined": ("collective", {"small_bytes": 30, "small_group": 2}),
    "hierarchical all": ("hierarchical", {"small_bytes": 40, "repacking": 3, "transfer": "fp16"}),
    "pscpu#4": ("pscpu#4", {}),
    "hierarchical in rows": ("hierarchical", {"groups": "rows"}),
    "hierarchical of one": ("hierarchical", {"groups": "one"}),
}
TIMED = ("copy", "collective", "tf_hierarchical")  # by ops, by collectives, wrongly: as all are built
# Methods, and what is put round them.
CASES: dict[str, tuple[str, dict[str, Any]]] = {**{name: (name, {}) for name in ON_CPU}, **WRAPPED}


def run_spec(count: int, model: str = "trivial") -> RunSpec:
    towers = tuple(Device(tower=tower, device=f"/CPU:{tower}") for tower in range(count))
    return RunSpec(model=model, devices=towers, backend="cpu", batch_size=1)


def exchange_of(fields: dict[str, Any], count: int) -> Exchange:
    """Return the exchange of a case. Groups: `rows` of unequal sizes, not in order, or `one` per tower."""
    if "groups" not in fields:
        return Exchange(**fields)
    towers = list(range(count))
    rows = (tuple(towers[1::3][::-1]), tuple(towers[0::3]), tuple(towers[2::3]))
    one = tuple((tower,) for tower in towers)
    chosen = one if fields["groups"] == "one" else tuple(row for row in rows if row)
    return Exchange(**{**fields, "groups": chosen})


def main(count: int, out: Path, *, timed: bool) -> None:
    from gputopo.launch.train import set_up_devices
    from gputopo.launch.train.placement import reducer_of

    set_up_devices(run_spec(count))
    names = [f"/CPU:{tower}" for tower in range(count)]
    results: dict[str, Any] = {
        "checks": {},
        "sound": {},
        "cuts": {},
        "nodes": {},
        "without_gpu_kernel": {},
        "self_test": {},
        "known": [name for name in METHODS if callable(reducer_of(name, names, Exchange()))],
    }
    for label, (name, fields) in CASES.items():
        exchange = exchange_of(fields, count)
        reducer = reducer_of(name, _uncommon(names) if label == "copy in parts" else names, exchange)
        with _kept_graphs() as nodes:
            np.savez(out / f"{label}.npz", **_reduce(reducer, names))
            results["cuts"][label] = sum(node.op == "Slice" for node in nodes)
            results["self_test"][label] = _refusal(partial(self_tested, reducer, label, names, exchange))
            if timed and label in TIMED:
                results["sound"][label] = _checked(reducer, label, names)
        if timed:
            results["nodes"][label] = len(nodes)
            results["without_gpu_kernel"][label] = [node.op for node in without_gpu_kernel(nodes)]
    for name, broken in _broken(names).items() if timed else ():
        results["checks"][name] = _checked(broken, "copy", names)
    (out / "reported.json").write_text(json.dumps(results))


def _uncommon(names: Sequence[str]) -> list[str]:
    """Return names by which the devices are not known to share their memory, as GPUs do not."""
    return [f"/job:localhost/replica:0/task:0/device:{name[1:]}" for name in names]


def self_tested(reducer: Any, label: str, names: Sequence[str], exchange: Exchange) -> str:
    from gputopo.launch.train.placement import self_test

    self_test(reducer, label, names, exchange.transfer)
    return "right"


def _refusal(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or what it refuses."""
    try:
        return call()
    except GputopoError as error:
        return error.what


def _checked(reducer: Any, method: str, names: Sequence[str]) -> Any:
    """Return the bytes and the times of a bench, after a self-test, or what one of them refused."""
    from gputopo.launch.train import Bench

    def timed() -> list[Any]:
        self_tested(reducer, method, names, Exchange())
        bench = Bench(list(SMALL_MODEL.values()), names)
        call = bench.call_of(reducer, checked=method)
        return [bench.bytes, all(call() > 0 for _ in range(2))]

    return _refusal(timed)


def _reduce(reducer: Any, names: Sequence[str]) -> dict[str, Any]:
    """Add numbers of any size and sign; return what was added, and the sums."""
    import tensorflow as tf

    random = np.random.default_rng(7)
    given = [random.normal(0.0, 10.0, (len(names), *shape)).astype(np.float32) for shape in SHAPES]
    sources = []
    for of_towers in given:
        row = []
        for name, value in zip(names, of_towers, strict=True):
            with tf.device(name):
                row.append(tf.Variable(value))
        sources.append(row)

    def build() -> list[list[Any]]:
        read = []
        for row in sources:
            values = []
            for name, source in zip(names, row, strict=True):
                with tf.device(name):
                    values.append(source.read_value())
            read.append(values)
        return [list(row) for row in reducer(read)]

    sums = tf.compat.v1.wrap_function(build, [])()
    found: dict[str, Any] = {f"given{number}": value for number, value in enumerate(given)}
    found |= {f"got{number}": np.stack([each.numpy() for each in row]) for number, row in enumerate(sums)}
    return found


def _broken(names: Sequence[str]) -> dict[str, Any]:
    """Return reductions with one fault each; the right sums come from `copy`."""
    from gputopo.launch.train.placement import reducer_of

    right = reducer_of("copy", names, Exchange())
    graphs: list[int] = []

    def loses_a_tower(gradients: Any) -> Any:
        return right([[*row[:-1], row[0] * 0] for row in gradients])

    def doubles_the_last_variable(gradients: Any) -> Any:
        *sums, last = right(gradients)
        return [*sums, last if len(gradients) == 1 else [2 * total for total in last]]

    def keeps_a_devices_own_gradient(gradients: Any) -> Any:
        sums = right(gradients)
        if len(gradients) > 1:
            sums[1][-1] = gradients[1][-1]
        return sums

    def wrong_from_the_second_graph_on(gradients: Any) -> Any:
        graphs.append(1)
        return right(gradients) if len(graphs) <= 1 else [list(row) for row in gradients]

    faults = (
        loses_a_tower,
        doubles_the_last_variable,
        keeps_a_devices_own_gradient,
        wrong_from_the_second_graph_on,
    )
    return {fault.__name__: fault for fault in faults}


@contextmanager
def _kept_graphs() -> Iterator[list[Any]]:
    """Collect the nodes of all graphs that are built meanwhile, whole, before TensorFlow rewrites them.

    Without those on the host, which is CPU 0; the other CPU devices stand for GPUs.
    """
    import tensorflow as tf

    wrap = tf.compat.v1.wrap_function
    nodes: list[Any] = []

    def keep(*arguments: Any) -> Any:
        graph = wrap(*arguments)
        nodes.extend(
            node
            for node in graph.graph.as_graph_def().node
            if node.device and not node.device.endswith("CPU:0")
        )
        return graph

    tf.compat.v1.wrap_function = keep
    try:
        yield nodes
    finally:
        tf.compat.v1.wrap_function = wrap


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), timed=sys.argv[3] == "1")
