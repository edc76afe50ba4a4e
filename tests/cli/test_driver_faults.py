"""`gputopo inspect` on a driver library that hangs, crashes, refuses or gives garbage, one call at a time."""

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from gputopo.values import schema
from gputopo.values.finding import Inspection
from tests.kit import faulty_nvml
from tests.kit.cuda.build import why_not
from tests.kit.forks import Done as ForkDone
from tests.kit.forks import Server
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_tree

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

HANG_S = 2.0  # a deadline that a test can wait for
# What is waited for is not printed, however busy this machine is: test_driver_states has it.
_INSPECT = """
from gputopo.probes.nvml import reading
reading.WAIT_S = float("inf")
from gputopo.cli import main
main()
"""
_IMPATIENT = f"""
from gputopo.probes import child
child.NVML_LIMITS = child.NVML_LIMITS._replace(start_s={HANG_S}, nvml_s={HANG_S})
{_INSPECT}
"""
INIT, COUNT, HANDLE = "nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2:2"
NAME, POWER = "nvmlDeviceGetName:2", "nvmlDeviceGetPowerUsage:2"
PAIR, SHUTDOWN = "nvmlDeviceGetTopologyCommonAncestor:2", "nvmlShutdown"
NAMES = "nvmlSystemGetProcessName"

STOPS = [
    *(("hang", place) for place in (INIT, SHUTDOWN)),
    *(("segv", place) for place in (COUNT, POWER)),
    *(("abort", NAME), ("exit", PAIR)),
]
REFUSALS = [("999", INIT), ("999", HANDLE), ("15", NAME)]
GARBAGE = [("huge", COUNT), ("garbage", NAMES), ("escape", NAME), ("print", INIT), ("twice", COUNT)]
DRILLS = [("none", "none"), *STOPS, *REFUSALS, *GARBAGE]
SHOWN = [("none", "none"), ("segv", POWER), ("escape", NAME)]


class Done(NamedTuple):
    """What an inspection printed as JSON, and for those in SHOWN as a table."""

    code: int
    json: str
    err: str
    table: str

    @property
    def inspection(self) -> Inspection:
        return schema.decode(self.json, Inspection, origin="stdout")

    @property
    def ids(self) -> set[str]:
        return {finding.id for finding in self.inspection.findings if finding.severity == "error"}


Run = Callable[..., ForkDone]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run a program on the kit's machine whose driver has a fault."""
    root = write_tree(SCENARIOS[faulty_nvml.SCENARIO], tmp_path_factory.mktemp("root"))
    given = faulty_nvml.environment()
    server = Server(["tests.kit.preloaded"], given)

    def run(fault: tuple[str, str], program: str, *command: str) -> ForkDone:
        environment = {**given, "GPUTOPO_ROOT": str(root), faulty_nvml.FAULT: "@".join(fault)}
        return server.run(("-c", program, *command), environment, 60)

    yield run
    server.end()


@pytest.fixture(scope="module")
def done(run: Run) -> Mapping[tuple[str, str], Done]:
    """Every drill, several at once: most of them wait."""

    def inspect(fault: tuple[str, str]) -> Done:
        program = _IMPATIENT if fault[0] == "hang" else _INSPECT
        asked = (fault, program, "inspect", "--fail-on", "error")
        whole = run(*asked, "--json")
        table = run(*asked) if fault in SHOWN else None
        assert table is None or table.returncode == whole.returncode
        shown, err = ("", "") if table is None else (table.stdout, table.stderr)
        return Done(whole.returncode, whole.stdout, whole.stderr + err, shown)

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(DRILLS, pool.map(inspect, DRILLS), strict=True))


Drills = Mapping[tuple[str, str], Done]


def test_no_fault_of_a_driver_ends_in_a_traceback_or_without_output(done: Drills) -> None:
    for fault, drill in done.items():
        assert drill.err == "", fault
        assert "garbage" not in drill.json + drill.table, fault
        assert "\x1b" not in drill.json + drill.table, fault
        assert len(drill.inspection.machine.gpus) >= 4, fault
        assert ("Details: --all" in drill.table) == (fault in SHOWN), fault


def test_the_library_is_healthy_without_a_fault(done: Drills) -> None:
    drill = done["none", "none"]
    machine = drill.inspection.machine
    assert (drill.code, machine.driver.status) == (0, "ok")
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA Test-100"] * 4
    assert {gpu.nvlinks for gpu in machine.gpus} == {()}  # it reports 18 links as down, and counts none


@pytest.mark.parametrize(("fault", "place"), STOPS)
def test_a_call_that_does_not_come_back_costs_what_comes_after_it(
    fault: str, place: str, done: Drills
) -> None:
    drill, machine = done[fault, place], done[fault, place].inspection.machine
    healthy = done["none", "none"].inspection.machine
    function, _, index = place.partition(":")
    if place == SHUTDOWN:
        assert (drill.code, machine) == (0, healthy)
        return
    status = "hung" if fault == "hang" else "crashed"
    (finding,) = [one for one in drill.inspection.findings if one.id == f"driver.{status}"]
    assert (drill.code, finding.severity) == (3, "error")
    call = re.sub("WithFlags$|(?<!Processes)_v[0-9]$", "", function)
    assert f"{call} of GPU" in finding.says if index else f"({call} " in finding.says
    how = {
        "hang": f"did not return within {HANG_S:g} s",
        "segv": "SIGSEGV",
        "abort": "SIGABRT",
        "exit": "exit code 3",
    }
    assert how[fault] in finding.says
    assert f"driver.{status}" in drill.table or (fault, place) not in SHOWN
    if place in (INIT, COUNT):
        assert [gpu.pci_address for gpu in machine.gpus] == [gpu.pci_address for gpu in healthy.gpus]
        return
    assert [gpu.name for gpu in machine.gpus if gpu.index != 2] == ["NVIDIA Test-100"] * 3
    assert [link.hop for link in machine.links] == [link.hop for link in healthy.links]


def test_a_refusal_costs_its_fact_and_one_of_the_identity_is_an_error(done: Drills) -> None:
    cases: list[tuple[str, str, int, set[str]]] = [
        ("999", INIT, 3, {"driver.failed"}),
        ("999", HANDLE, 1, {"gpu.no_answer"}),
        ("15", NAME, 1, {"gpu.lost"}),
    ]
    for fault, place, code, ids in cases:
        drill = done[fault, place]
        assert (drill.code, drill.ids) == (code, ids)
        if "gpu.no_answer" in ids:
            machine = drill.inspection.machine
            assert machine.gpus[2].pci_address == "0000:46:00.0"
            assert {gpu.cuda_index for gpu in machine.gpus} == {None}
            (finding,) = [one for one in drill.inspection.findings if one.id == "gpu.no_answer"]
            assert (finding.subject.text, finding.evidence["nvml"]) == ("gpu:2", "UNKNOWN")


@pytest.mark.parametrize(("fault", "place"), [("huge", COUNT), ("twice", COUNT)])
def test_a_count_that_the_handles_contradict_is_a_finding(fault: str, place: str, done: Drills) -> None:
    drill = done[fault, place]
    (finding,) = [one for one in drill.inspection.findings if one.id == "machine.contradiction"]
    assert "the driver reports different numbers of GPUs" in finding.says
    assert len(drill.inspection.machine.gpus) == (4 if fault == "huge" else 8)
    said = {"nvmlDeviceGetCount": "2147483647"} if fault == "huge" else {"UUIDs": "4", "PCI addresses": "4"}
    assert finding.evidence["said"].items() >= said.items()


def test_other_commands_end_with_the_finding_too(run: Run) -> None:
    for command in (("run", "--", "true"), ("inspect", "--watch")):
        done = run(("segv", POWER), _INSPECT, *command)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 2), done
        assert "nvmlDeviceGetPowerUsage of GPU 2 ended the process with SIGSEGV" in done.stderr
