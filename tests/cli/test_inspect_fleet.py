"""`inspect --fleet` on recordings of several hosts, as files of a folder."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gputopo.launch import read_machines
from gputopo.report import drain_commands
from gputopo.values import schema
from gputopo.values.finding import Fleet, HostFinding
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE
from tests.cli.conftest import Call
from tests.findings import boxes
from tests.kit.machines import machine_of

Change = boxes.Change


@pytest.fixture
def hosts(tmp_path: Path) -> list[Path]:
    """Files of six hosts: n2's GPU 1 has a lower power limit, n4's file is cut off."""
    odd = boxes.gpu(1, power_w={"limit": 250.0, "enforced_limit": 250.0})
    for number in range(6):
        machine = machine_of("four")
        schema.write(tmp_path / f"n{number}.json", odd(machine) if number == 2 else machine)
    cut = tmp_path / "n4.json"
    cut.write_bytes(cut.read_bytes()[:999])
    return sorted(tmp_path.iterdir())


def test_the_odd_host_and_the_one_without_a_reading_are_named(call: Call, hosts: list[Path]) -> None:
    done = call("inspect", "--from", *hosts, "--fleet")
    assert (done.code, done.err) == (0, "")
    lines = " ".join(done.out.split())
    assert "5 hosts 4 x Test-100: n[0-3,5];" in lines
    assert "host n2: GPU 1: power limit 250 W (400 W on its 4 peers)" in lines
    assert "host n4: no reading: " in lines
    assert "Outliers n2 " in lines
    assert max(map(len, done.out.splitlines())) <= 80


def test_a_folder_of_recordings_is_a_fleet(call: Call, hosts: list[Path]) -> None:
    whole = call("inspect", "--from", hosts[0].parent, "--fleet", "--json")
    assert whole.out == call("inspect", "--from", *hosts, "--fleet", "--json").out
    assert whole.code == 0


def test_the_document_and_markdown_name_the_same_hosts(call: Call, hosts: list[Path]) -> None:
    found = schema.decode(call("inspect", "--from", *hosts, "--fleet", "--json").out, Fleet, origin="stdout")
    assert (found.outliers, found.unread) == (("n2",), ("n4",))
    markdown = call("inspect", "--from", *hosts, "--fleet", "--format", "markdown").out
    assert "\n### Hosts\n" in markdown
    assert "host n2: GPU 1: power limit 250 W" in markdown


def test_the_words_of_a_host_are_no_command_of_the_shell_that_drains_it(tmp_path: Path) -> None:
    says = f"host n2: card '$(touch {tmp_path}/a)' \"`touch {tmp_path}/b`\" \\"
    fault = HostFinding(id="x", severity="error", subject=MACHINE, says=says, hosts=("n2",))
    command = drain_commands(Fleet(findings=(fault,)))
    assert "touch" in command
    subprocess.run(["sh", "-c", f"scontrol() {{ :; }}; {command}"], check=True, timeout=60)
    assert not list(tmp_path.iterdir())


def test_hosts_with_errors_are_drained_by_commands_of_slurm_and_with_warnings_if_asked(
    call: Call, hosts: list[Path]
) -> None:
    drains = ("inspect", "--from", *hosts, "--fleet", "--format", "scontrol")
    (unread,) = map(shlex.split, call(*drains).out.splitlines())
    assert unread[:4] == ["scontrol", "update", "NodeName=n4", "State=DRAIN"]
    assert unread[4].startswith("Reason=gputopo: no reading: ")
    again, odd = map(shlex.split, call(*drains, "--fail-on", "warning").out.splitlines())
    assert again == unread
    assert odd[2:4] == ["NodeName=n2", "State=DRAIN"]
    assert re.fullmatch(r"Reason=gputopo: GPU 1: power limit 250 W \(.*peers\)", odd[4])
    text = call("inspect", "--from", *hosts, "--fleet", "--json", "--fail-on", "warning").out
    codes = schema.decode(text, Fleet, origin="stdout").exit_codes
    assert codes == {"n0": 0, "n1": 0, "n2": 1, "n3": 0, "n4": 3, "n5": 0}


@pytest.mark.parametrize(
    "name", ["ALL", "all", "Default", "ALL.site", "10.0.0.1", "n[1-64]", "n1,n2", "a\nb", ""]
)
def test_a_name_that_slurm_takes_for_more_than_one_node_is_never_drained(name: str) -> None:
    fault = HostFinding(id="x", severity="error", subject=MACHINE, says="lost", hosts=(name,))
    (line,) = drain_commands(Fleet(findings=(fault,))).splitlines()
    assert line.startswith("# not drained, because it is not a node name: ")


def test_nodes_are_named_without_their_domain_and_folded_by_fault() -> None:
    faults = [
        HostFinding(id="x", severity="error", subject=MACHINE, says=f"host {name}: lost", hosts=(name,))
        for name in ("n3.cluster.site", "n17", "n3.cluster.site")
    ]
    (line,) = drain_commands(Fleet(findings=tuple(faults))).splitlines()
    assert shlex.split(line)[2:] == ["NodeName=n[3,17]", "State=DRAIN", "Reason=gputopo: lost"]


def test_hosts_are_compared_with_the_recording_of_each(call: Call, hosts: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "before"
    assert call("inspect", "--from", *hosts, "--fleet", "--record", folder).code == 0
    assert sorted(one.stem for one in folder.iterdir()) == ["n0", "n1", "n2", "n3", "n5"]
    schema.write(hosts[0], boxes.gpu(3, name="Test-200")(machine_of("four")))
    done = call("inspect", "--from", *hosts[:3], "--fleet", "--baseline", folder)
    lines = " ".join(done.out.split())
    assert "host n0: since the baseline: GPU 3: " in lines
    assert "host n1: since" not in lines
    assert "host n2: since" not in lines
    assert "hosts n[3,5]: in the baseline, but not asked" in lines
    drains = call("inspect", "--from", *hosts[1:3], "--fleet", "--baseline", folder, "--format", "scontrol")
    assert "NodeName=n[" not in drains.out, "what was not asked is not drained"


@pytest.mark.parametrize(("fail_on", "number", "code"), [("error", 3, 0), ("warning", 3, 1), ("error", 6, 1)])
def test_fail_on_counts_what_differs(
    call: Call, hosts: list[Path], fail_on: str, number: int, code: int
) -> None:
    assert call("inspect", "--from", *hosts[:number], "--fleet", "--fail-on", fail_on).code == code


def test_hosts_are_named_by_their_files(tmp_path: Path) -> None:
    files = ["a/n1.json", "b/n2.tar.gz.json", "node1.cluster.json", "a/m.json", "b/m.json"]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        schema.write(tmp_path / file, machine_of("four"))
    assert list(read_machines([str(tmp_path / file) for file in files] + ["7gforce"])) == [
        *("n1", "n2", "node1.cluster", f"{tmp_path}/a/m", f"{tmp_path}/b/m", "7gforce"),
    ]


def test_a_recorded_host_name_is_used_and_only_recorded_when_asked(call: Call, tmp_path: Path) -> None:
    def named(name: str) -> Machine:
        return boxes.host(name=name)(machine_of("four"))

    for number in range(3):
        schema.write(tmp_path / f"{number}.json", named(f"rack1-{number}"))
    found = call("inspect", "--from", *sorted(tmp_path.iterdir()), "--fleet", "--json").out
    assert schema.decode(found, Fleet, origin="stdout").kinds[0].hosts == ("rack1-0", "rack1-1", "rack1-2")
    assert "rack1-0" not in call("inspect", "--from", tmp_path / "0.json", "--json").out
    assert "rack1-0" in call("inspect", "--from", tmp_path / "0.json", "--json", "--identities").out
