"""A process that runs a whole session on the doubles of NVML and CUDA; JSON in and out.

With CUDA's double in the environment. Of each copy few windows are made.
"""

import sys
from itertools import count

import msgspec

from gputopo.probes import SessionRequest
from gputopo.probes.session import Doors, HostMemoryRates
from gputopo.values.machine import Machine
from gputopo.values.schema import as_text, from_text
from tests.kit.cuda.layouts import named
from tests.kit.nvml import FakeNvml, installed
from tests.probes.session.double import measure


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `machine`: the scenario as it was read."""

    scenario: str
    machine: Machine
    request: SessionRequest


def main() -> None:
    """Run the session that standard input describes.

    Seconds pass while the time is asked for first, enough for clocks to ramp up, and little after that.
    """
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task, dec_hook=from_text)
    ticks = count(1)
    doors = Doors(
        host_memory=lambda machine, request: HostMemoryRates(),
        now=lambda: 0.1 * min(tick := next(ticks), 40) + 0.0005 * tick,
    )
    with installed(FakeNvml(named(task.scenario))):
        found = measure(task.machine, task.request, doors=doors)
    sys.stdout.buffer.write(msgspec.json.encode(found, enc_hook=as_text))


if __name__ == "__main__":
    main()
