"""Reports of a program's processes, as they come through the pipe of its run."""

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from gputopo.launch.user_program import StepPipe

Report = dict[str, Any]


def step(pid: int, number: int, seconds: float = 0.5, *, examples: int = 10, **more: object) -> Report:
    """Return the report of a step."""
    fields = {"pid": pid, "step": number, "seconds": seconds, "examples": examples, **more}
    return {"report": "step", **fields}


def ended(pid: int) -> Report:
    """Return the report of a process that takes no more steps."""
    return {"report": "ended", "pid": pid}


def received(reports: Iterable[Report]) -> Iterator[Any]:
    """Yield what a run receives of these reports."""
    with closing(StepPipe()) as pipe, open(str(pipe.name), "wb", 0) as sending:
        for report in reports:
            sending.write(json.dumps(report).encode() + b"\n")
            yield from pipe.take()
