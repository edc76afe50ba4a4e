"""What each device sends to each other one in the graphs of reductions: `python -m tests.prediction.sent`.

Prints JSON: {"NAME TOWERS": [[[from, to, share of all bytes], ...], additions]}.
"""

import json
from collections import Counter

from gputopo.values.run.spec import Exchange
from gputopo.workload import MIN_CHUNK

SIZES = (64, 40_000, 40 * MIN_CHUNK, 7, 3 * MIN_CHUNK, 1_000_000, 12 * MIN_CHUNK)
HOST = -1
SPREAD = ("copy", "psgpu", "psgpu#2")
ON_HOST = ("pscpu#3",)
COUNTS = (3,)


def main() -> None:
    found = {}
    for name, towers in [(name, towers) for name in (*SPREAD, *ON_HOST, "one_device") for towers in COUNTS]:
        sent, additions = _graph(name, towers)
        found[f"{name} {towers}"] = [[*pair, share] for pair, share in sent.items()], additions
    print(json.dumps(found))


def _graph(name: str, towers: int) -> tuple[dict[tuple[int, int], float], int]:
    """Return the share of all bytes that each device sends to each other one, and the additions."""
    import tensorflow as tf

    from gputopo.launch.train.placement import reducer_of

    devices = [f"/GPU:{tower}" for tower in range(towers)]
    with tf.Graph().as_default() as graph:
        gradients = []
        for size in SIZES:
            row = []
            for device in devices:
                with tf.device(device):
                    row.append(tf.compat.v1.placeholder(tf.float32, (size,)))
            gradients.append(row)
        reducer_of(name, devices, Exchange())(gradients)
    sent: Counter[tuple[int, int]] = Counter()
    seen = set()
    additions = 0
    for op in graph.get_operations():
        there = _tower(op.device)
        additions += op.type in ("AddN", "AddV2")
        for tensor in op.inputs:
            here = _tower(tensor.device)
            if here != there and tensor.dtype == tf.float32 and (tensor.name, there) not in seen:
                seen.add((tensor.name, there))
                sent[here, there] += tensor.shape.num_elements()
    return {pair: numbers / sum(SIZES) for pair, numbers in sent.items()}, additions


def _tower(device: str) -> int:
    kind, number = device.rpartition("/device:")[2].lstrip("/").split(":")
    return HOST if kind == "CPU" else int(number)


if __name__ == "__main__":
    main()
