"""`gputopo bandwidth` on drivers that hang, crash or are slow: NVML's and CUDA's, one call at a time."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import pytest

from tests.kit import faulty_nvml
from tests.kit.cuda import session
from tests.kit.cuda.build import why_not
from tests.kit.cuda.derive import from_scenario
from tests.kit.cuda.words import spoilt
from tests.kit.forks import Program, Server
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_tree

pytestmark = [
    pytest.mark.sessions,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

LIMIT_S = 2.0  # of a call that hangs: a test can wait for it
PATIENT_S = 60.0  # of calls that return, however busy the machine is
CUDA, NVML = "FAKE_CUDA_CALL", faulty_nvml.FAULT
# A session of few and small copies: those with the host, and within a GPU.
PROGRAM = f"""
import os
from gputopo.cli import main
from gputopo.values import bandwidth
from gputopo.probes.cuda import transfer
from gputopo.probes.session import budget, conditions, jobs as all_jobs, session, watched
from gputopo.probes.session.host_memory import HostMemoryRates
from gputopo.probes.session import measuring
from gputopo.probes.child import CallLimits

FEW = ("h2d", "d2h", "d2d_local")
def few(setting):
    return tuple(one for one in all_jobs.jobs(setting) if one.kind in FEW and one.group is None)

session.jobs = few
measuring.measure_host_memory = lambda host, **_: HostMemoryRates(notes=("host memory was measured",))
bandwidth.LARGE_BYTES = transfer.LARGE_BYTES = budget.MIN_BYTES = all_jobs.LOCAL_BYTES = 2**21
budget.MIN_WINDOW_S, budget.QUICK_EFFORTS, conditions.MIN_S = 0.0, (budget.Effort(0.0, 3),), 0.02
limit_s = {LIMIT_S} if "hang" in os.environ["DRILL"] else {PATIENT_S}
watched.CallLimits = lambda: CallLimits(limit_s, limit_s, limit_s, {PATIENT_S}, 1.0, 2.0)
main()
"""
COMMAND = ("-c", PROGRAM, "bandwidth", "--gpus", "0-2", "--json")
POWER = "nvmlDeviceGetPowerUsage:0"
DRILLS = [
    (CUDA, "hang@cuInit"),
    (NVML, f"segv@{POWER},6"),
]


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def places(self) -> set[str]:
        """The GPUs of which there are numbers."""
        found = {place for one in self.document["samples"] for place in (one["source"], one["destination"])}
        return found - {"host"}


class Machine(NamedTuple):
    """Processes on it find the doubles of both libraries."""

    server: Server
    environment: Mapping[str, str]

    def run(self, drill: tuple[str, str]) -> Done:
        done = self.server.run(COMMAND, self.given(drill), 90)
        return Done(done.returncode, done.stdout, done.stderr)

    def given(self, drill: tuple[str, str]) -> dict[str, str]:
        """Return the environment of a drill: with a separate home, where GPUs are claimed."""
        home = f"{self.environment['GPUTOPO_HOME']}/{DRILLS.index(drill)}"
        return {**self.environment, drill[0]: drill[1], "DRILL": drill[1], "GPUTOPO_HOME": home}

    @contextmanager
    def started(self, drill: tuple[str, str], out: int) -> Iterator[tuple[Program, IO[str]]]:
        """Start a drill whose limits are long."""
        with self.server.started(COMMAND, {**self.given(drill), "DRILL": ""}, out) as program:
            yield program


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    scenario = SCENARIOS[faulty_nvml.SCENARIO]
    root = write_tree(scenario, tmp_path_factory.mktemp("root"))
    spec = spoilt(from_scenario(scenario), (f"memory={48 * 2**20}",))
    environment = session.environment(spec, tmp_path_factory.mktemp("cuda"), faulty_nvml.environment())
    environment["GPUTOPO_ROOT"] = str(root)
    environment["GPUTOPO_HOME"] = str(tmp_path_factory.mktemp("home"))
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    server = Server(["tests.kit.cuda.preloaded"], environment)
    try:
        yield Machine(server, environment)
    finally:
        server.end()


@pytest.fixture(scope="module")
def done(machine: Machine) -> Mapping[tuple[str, str], Done]:
    """Every drill, several at once: most of them wait."""
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(DRILLS, pool.map(machine.run, DRILLS), strict=True))


Drills = Mapping[tuple[str, str], Done]


def test_each_ends_in_a_report_and_without_a_traceback(done: Drills) -> None:
    for drill in DRILLS:
        one = done[drill]
        assert one.out, (one.code, one.err)
        assert "a bug of gputopo" not in one.err, one.err
        assert "host memory was measured" in one.document["notes"]


def test_a_start_that_does_not_return_is_exit_code_3(done: Drills) -> None:
    one, reason = done[CUDA, "hang@cuInit"], f"cuInit did not return within {LIMIT_S:g} s"
    assert (one.code, one.document["samples"]) == (3, [])
    assert reason in one.err
    assert one.document["not_measured"][0] == {"what": "all copies of the GPUs", "reason": reason}


def test_nvml_that_does_not_return_costs_readings_and_no_copy(done: Drills) -> None:
    one = done[NVML, f"segv@{POWER},6"]
    assert (one.code, one.document["failures"], one.document["complete"]) == (0, [], True)
    assert one.places == {"gpu:0", "gpu:1", "gpu:2"}
    how = "nvmlDeviceGetPowerUsage of GPU 0 ended the process with SIGSEGV"
    assert any(how in note for note in one.document["notes"])
    assert one.document["samples"][-1]["conditions"] == []
    kinds = {(sample["kind"], sample["source"]) for sample in one.document["samples"]}
    assert kinds >= {("h2d", "host"), *(("d2h", f"gpu:{gpu}") for gpu in range(3))}


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def state_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def wait_for(pid: str, states: str) -> None:
    until = time.monotonic() + 60
    while state_of(pid) not in states and time.monotonic() < until:
        time.sleep(0.01)
    assert state_of(pid) in states


def test_a_driver_that_hangs_is_left_with_the_command(machine: Machine) -> None:
    with TemporaryFile() as out, machine.started((CUDA, "hang@cuInit"), out.fileno()) as (program, err):
        next(line for line in err if "starting CUDA" in line or "measuring 1 of 1" in line)
        (child,) = children_of(program.pid)
        wait_for(child, "S")
        os.kill(program.pid, signal.SIGINT)
        assert program.wait(PATIENT_S / 2) == 130
        out.seek(0)
        document = json.loads(out.read())
    wait_for(child, "ZX")
    assert document["complete"] is False
    assert document["not_measured"][0]["reason"] == "interrupted"
