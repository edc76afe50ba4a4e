"""The input over several hosts, in rank 0's process: `-m tests.launch.train.inputs.hosts_process SPEC OUT`.

SPEC is a file with the spec of all hosts, whose servers stand, each in its own folder, as this process is in
that of rank 0. OUT gets a JSON file: {name of a case: what it gave}.
"""

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.values import schema
from gputopo.values.run.spec import RunSpec
from tests.launch.train.hosts import devices_of
from tests.launch.train.inputs.cases.sources import Picture, error_of, source, spec_of

HERE = Path("/proc/self/cwd")
CIFAR = Picture((32, 32, 3), 11)
STEPS = 8
WRONG = ("missing", "bitten", "picture")


def main(spec_file: str, out: str) -> None:
    from gputopo.launch.train import joined, set_up_devices

    every = schema.decode(Path(spec_file).read_bytes(), RunSpec, origin=spec_file)
    set_up_devices(msgspec.structs.replace(every, devices=devices_of(1, 4)))
    with joined(every):
        found = {}
        for name, case in CASES.items():
            found[name] = case(every)
    Path(out).write_text(json.dumps(found))


def on(every: RunSpec, hosts: int, each: int, **fields: Any) -> RunSpec:
    """Return a spec of several hosts, or of one."""
    spec = spec_of(**fields)
    if hosts == 1:
        return msgspec.structs.replace(spec, devices=spec_of(towers=each).devices)
    return msgspec.structs.replace(spec, devices=devices_of(hosts, each), servers=every.servers)


def taken(spec: RunSpec, numbers: Sequence[int], model: Any = None, start: tuple[int, int] = (0, 0)) -> Any:
    """Return the labels of each step and tower, the sum of each picture's pixels, and what is reported."""
    labels: list[Any] = []
    sums: list[Any] = []
    with source(spec, model) as made:
        made.start_at(*start)
        for number in numbers:
            try:
                fed = [one.numpy() for one in made.feed(number)]
            except StopIteration:
                break
            labels.append([one.tolist() for one in fed[1::2]])
            sums.append([np.abs(one).sum((1, 2, 3), np.float64).tolist() for one in fed[0::2]])
        return {"labels": labels, "sums": sums, "says": made.notices, "images": made.images_per_epoch}


def evaluations(every: RunSpec) -> Any:
    """The batches of six pictures on two hosts and on one, and of seven of CIFAR-10 on two."""
    own: dict[str, Any] = {"folder": HERE / "numbered", "task": "eval", "batch": (1, 1, 1, 2)}
    cifar: dict[str, Any] = {"folder": HERE / "cifar", "task": "eval", "batch": 4}
    return {
        "several": taken(on(every, 2, 2, **own), range(9)),
        "one": taken(on(every, 1, 4, **own), range(9)),
        "cifar": taken(on(every, 2, 1, **cifar), range(9), CIFAR),
    }


def gone_on(every: RunSpec) -> Any:
    """All pictures on one host; what follows 3 steps of 10 on two that cache, with the next pass."""
    fields: dict[str, Any] = {"folder": HERE / "numbered", "distortions": True}
    rest = on(every, 2, 1, batch=15, cache="raw", **fields)
    return {
        "whole": taken(on(every, 1, 1, batch=60, **fields), range(1)),
        "rest": taken(rest, range(3, 6), None, (3, 30)),
    }


def wrong(every: RunSpec) -> Any:
    """What is reported of hosts whose folders are not that of rank 0."""
    found = {}
    for name in WRONG:
        spec = on(every, 2, 1, folder=HERE / name, batch=3)
        found[name] = error_of(functools.partial(taken, spec, range(STEPS)))
    return found


def threads(every: RunSpec) -> Any:
    """What the input says of threads where hosts have different numbers of cores."""
    replace = msgspec.structs.replace
    servers = tuple(replace(one, cores=cores) for one, cores in zip(every.servers, (1, 9), strict=True))
    spec = on(replace(every, servers=servers), 2, 1, folder=HERE / "numbered", batch=2)
    with source(spec) as made:
        return {"says": made.notices, "describes": dict(made.describe())["threads"]}


CASES = {case.__name__: case for case in (evaluations, gone_on, wrong, threads)}


if __name__ == "__main__":
    main(*sys.argv[1:])
