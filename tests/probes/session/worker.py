"""A process that runs a whole session on the doubles of NVML and CUDA: JSON of the Bandwidth out.

`python -m tests.probes.session.worker MACHINE KIND,KIND,... [GPU,GPU,...]`, with CUDA's double in the
environment. The least effort is taken, and of the jobs those of the kinds: the double really copies.
"""

import resource
import sys
import tempfile
from pathlib import Path

import msgspec

from gputopo.copies import budget, jobs
from gputopo.copies.copies import Job
from gputopo.probes.session import session as bandwidth_session
from gputopo.probes.session.host_memory import HostMemory
from gputopo.probes.session.measuring import Doors, measure
from gputopo.values.bandwidth import Bandwidth
from tests.kit.cuda.layouts import named
from tests.kit.machines import read
from tests.kit.nvml import FakeNvml, installed


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, and the largest resident size of the process."""

    bandwidth: Bandwidth
    peak_bytes: int


def main() -> None:
    """Run the session that the arguments name."""
    name, kinds, *gpus = sys.argv[1:]
    scenario = named(name)

    def chosen(setting: jobs.Setting) -> tuple[Job, ...]:
        return tuple(job for job in jobs.jobs(setting) if job.kind in kinds.split(","))

    bandwidth_session.jobs = chosen  # type: ignore[attr-defined]
    budget.QUICK_EFFORTS = (budget.Effort(0.0, 3),)
    request = jobs.Request(gpus=tuple(map(int, gpus[0].split(","))) if gpus else None)
    doors = Doors(host_memory=lambda machine, request: HostMemory())
    with tempfile.TemporaryDirectory() as folder, installed(FakeNvml(scenario)):
        found = measure(read(scenario, Path(folder)), request, doors=doors)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.buffer.write(msgspec.json.encode(Outcome(bandwidth=found, peak_bytes=peak)))


if __name__ == "__main__":
    main()
