"""A process that runs a whole session on the doubles of NVML and CUDA; JSON in and out.

With CUDA's double in the environment. Few repeats are made, and of the jobs those of some kinds.
"""

import resource
import sys

import msgspec

from gputopo.probes import SessionRequest
from gputopo.probes.copy_jobs import CopyJob, Setting
from gputopo.probes.cuda import transfer
from gputopo.probes.session import budget, jobs, ramp_up
from gputopo.probes.session import session as bandwidth_session
from gputopo.probes.session.host_memory import HostMemoryRates
from gputopo.probes.session.measuring import Doors
from gputopo.values import bandwidth
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine
from gputopo.values.schema import as_text, from_text
from tests.kit.cuda.layouts import named
from tests.kit.nvml import FakeNvml, installed
from tests.probes.session.double import measure


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `machine`: the scenario as it was read.

    `large_bytes`: of the smallest copy that counts as large, since the double really copies; None: the sizes
    are those of a session. `follow_up`: also measure what shows which GPUs share an uplink.
    `ramp_up_s`: how long clocks are given to ramp up.
    """

    scenario: str
    machine: Machine
    kinds: tuple[str, ...]
    gpus: tuple[int, ...] | None = None
    large_bytes: int | None = bandwidth.LARGE_BYTES
    follow_up: bool = True
    ramp_up_s: float = 0.02


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, and the largest resident size of the process."""

    bandwidth: Bandwidth
    peak_bytes: int


def main() -> None:
    """Run the session that standard input describes."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task, dec_hook=from_text)

    def chosen(setting: Setting) -> tuple[CopyJob, ...]:
        return tuple(job for job in jobs.jobs(setting) if job.kind in task.kinds)

    bandwidth_session.jobs = chosen  # type: ignore[attr-defined]
    if not task.follow_up:
        bandwidth_session.next_jobs = lambda *_: ()  # type: ignore[attr-defined]
    budget.QUICK_EFFORTS = (budget.Effort(0.0, 3),)
    if task.large_bytes is not None:
        for module in (bandwidth, transfer):
            module.LARGE_BYTES = task.large_bytes  # type: ignore[attr-defined]
        budget.MIN_BYTES = jobs.LOCAL_BYTES = task.large_bytes
        budget.MIN_WINDOW_S = 0.0
    doors = Doors(host_memory=lambda machine, request: HostMemoryRates())
    ramp_up.MIN_S = task.ramp_up_s
    with installed(FakeNvml(named(task.scenario))):
        found = measure(task.machine, SessionRequest(gpus=task.gpus), doors=doors)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.buffer.write(msgspec.json.encode(Outcome(bandwidth=found, peak_bytes=peak), enc_hook=as_text))


if __name__ == "__main__":
    main()
