"""`inspect` and `plan` of several hosts, which are asked by a stand-in for ssh, and of files."""

import json
import threading
from pathlib import Path

import msgspec
import pytest

import gputopo
from gputopo.cli.hosts import asking
from gputopo.cli.hosts.asking import hosts_to_ask, to_ask
from gputopo.launch import remote_ask
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.launch.remote_ask import HostProcess
from gputopo.values import schema
from gputopo.values.run.plan import Plan
from tests.cli.conftest import Call
from tests.launch.hosts.environs import slurm_step
from tests.planner.joint_machines import two_switches


def test_hosts_that_do_not_answer_cost_themselves_and_are_named_by_the_words_of_ssh(
    call: Call, ssh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_line, others = HostProcess.line, threading.Semaphore(0)

    def line(process: HostProcess, within_s: float, python: str) -> bytes:
        assert within_s == 300
        if process.start.host != "hangs":
            try:
                return read_line(process, within_s, python)
            finally:
                others.release()
        for _ in range(4):
            assert others.acquire(timeout=60), "the others do not wait for it"
        return read_line(process, 0.1, python)

    monkeypatch.setattr(HostProcess, "line", line)
    monkeypatch.setattr(remote_ask, "_END_S", 0.1)
    done = call("inspect", "--json", "--hosts", "hangs,refused,n1,bare,n2", "--join-timeout", "300")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [host for kind in found["kinds"] for host in kind["hosts"]] == ["n1", "n2"]
    assert found["unread"] == ["hangs", "refused", "bare"]
    says = str([one for one in found["findings"] if one["id"] == "fleet.no_answer"])
    assert "hangs did not answer within 0.1 s" in done.err
    for words in ("ssh cannot connect to refused: ssh: connect to host refused port 22", "No such file"):
        assert words in done.err
        assert words in says


def test_what_a_host_prints_instead_of_an_answer_is_its_error(
    call: Call, ssh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested = "head -c 1000000 /dev/zero | tr '\\0' '['; echo"
    prints = f"deep) {nested};;\nlong) yes | tr -d '\\n';;\n*) printf '\\377\\n';;"
    (tmp_path / "python").write_text(f"#!/bin/sh\ncase $HOSTNAME in\n{prints}\nesac\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(remote_ask, "_MAX_BYTES", 4 * 1024 * 1024)
    monkeypatch.setattr(remote_ask, "_END_S", 0.1)  # of what prints without an end
    done = call("inspect", "--hosts", "deep,long,odd", "--remote-python", str(tmp_path / "python"))
    assert (done.code, done.out) == (3, "")
    for says in (
        "deep answered something else",
        "odd answered something else",
        "long answered with a line of",
    ):
        assert f"gputopo: {says}" in done.err


def test_where_no_host_answers_the_first_reason_is_the_error(call: Call, ssh: None) -> None:
    done = call("inspect", "--fleet", "--hosts", "denied,refused")
    assert (done.code, done.out) == (3, "")
    assert "ssh-copy-id denied" in done.err or "sshd runs on it" in done.err


def test_a_host_of_another_version_is_named(call: Call, ssh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputopo.__version__", "99.0")
    done = call("inspect", "--hosts", "n1,n2")
    assert done.code == 2
    assert "99.0 here" in done.err
    assert "install the same version on all hosts" in done.err


def test_the_first_rank_of_a_step_asks_the_others_by_srun_and_they_do_nothing(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm_step().items():
        monkeypatch.setenv(name, text)
    hosts = hosts_to_ask(HostOptions())
    assert hosts is not None
    starts, _ = to_ask(hosts, HostOptions(remote_python="/there/python"), "inspect")
    assert starts[1].command[:6] == ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist", "n2")
    assert starts[1].command[6:] == ("/there/python", *asking._ANSWER, "inspect", "n1")
    for name, text in slurm_step(node=1).items():
        monkeypatch.setenv(name, text)
    for words in (("inspect", "--fleet"), ("plan", "--model", "alexnet"), ("bandwidth", "--network")):
        done = call(*words)
        assert (done.code, done.out) == (0, "")
        assert "rank 0 asks this host" in done.err


def test_inspect_asks_others_only_where_it_is_asked_to(
    call: Call, without_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call("inspect", "--fleet")
    assert done.code == 2
    assert "srun gputopo inspect --fleet" in done.err
    for name, text in slurm_step().items():
        monkeypatch.setenv(name, text)
    assert call("inspect").code == 0
    assert "there is no GPU to plan for" in call("plan", "--model", "alexnet", "--num-hosts", "1").err


def test_hosts_without_names_cannot_be_asked(
    call: Call, without_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "n1")
    done = call("inspect", "--fleet", "--num-hosts", "2", "--node-rank", "0")
    assert (done.code, done.out) == (2, "")
    assert "does not name the other hosts" in done.err
    assert "inspect --record" in done.err


def test_options_of_hosts_are_not_ignored_beside_files(call: Call, without_gpu: None) -> None:
    done = call("inspect", "--from", "7gforce", "--node-rank", "0")
    assert (done.code, done.out) == (2, "")
    assert "mutually exclusive" in done.err
    assert call("inspect", "--num-hosts", "1").code == 0


def test_hosts_without_gpus_are_nothing_to_plan_for(call: Call, ssh: None) -> None:
    done = call("plan", "--model", "alexnet", "--hosts", "n1,n2")
    assert done.code == 3
    assert "n2 has answered" in done.err
    assert "there is no GPU to plan for on any of the hosts" in done.err


def test_hosts_are_planned_for_as_they_answer(
    call: Call, ssh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = tmp_path / "python"
    own = msgspec.structs.replace(two_switches(), source="recording")
    line = msgspec.json.encode(
        {
            "schema": "gputopo.joining/1",
            "rank": 0,
            "name": "x",
            "address": "10.0.0.9",
            "port": 0,
            "version": gputopo.__version__,
            "machine": msgspec.to_builtins(own),
        }
    ).decode()
    (tmp_path / "line").write_text(f"{line}\n")
    answers.write_text(f"#!/bin/sh\ncat {tmp_path}/line\n")
    answers.chmod(0o755)
    asked = ("plan", "--model", "resnet50", "--single-gpu-images-per-sec", "400", "--json")
    done = call(*asked, "--hosts", "n1,refused,n2", "--remote-python", str(answers))
    assert done.code == 3, "one does not answer"
    assert "planned for 2 of 3 hosts" in done.err
    plan = schema.decode(done.out, Plan, origin="stdout")
    assert [(one.host, one.gpus) for one in plan.choice.hosts] == [
        ("n1", tuple(range(8))),
        ("n2", tuple(range(8))),
    ]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Recordings of two hosts."""
    for name in ("n1", "n2"):
        schema.write(tmp_path / f"{name}.json", msgspec.structs.replace(two_switches(), source="recording"))
    return sorted(tmp_path.iterdir())


def test_recordings_of_hosts_are_planned_together(call: Call, files: list[Path]) -> None:
    asked = ("plan", "--model", "resnet50", "--single-gpu-images-per-sec", "400", "--from", *files, "--fleet")
    done = call(*asked, "--json")
    assert (done.code, done.err) == (0, "")
    plan = schema.decode(done.out, Plan, origin="stdout")
    assert [(one.host, one.gpus) for one in plan.choice.hosts] == [
        ("n1", tuple(range(8))),
        ("n2", tuple(range(8))),
    ]
    assert set(plan.choice.exposed_ms) == {"weights", "gradients", "variables", "network"}
    table = call(*asked).out
    assert table.startswith("GPUs 0-7 of n1, n2, replicated nccl: ")
    assert "16 of 2 hosts" in table
    assert max(map(len, table.splitlines())) <= 80
    markdown = call(*asked, "--format", "markdown").out
    assert markdown.startswith("GPUs 0-7 of n1, n2, replicated nccl: ")


def test_the_number_of_gpus_may_be_left_to_the_plan(call: Call, files: list[Path]) -> None:
    asked = ("plan", "--model", "vgg16", "--single-gpu-images-per-sec", "400", "--from", *files, "--fleet")
    done = call(*asked, "--num-gpus", "auto:0.4")
    assert done.code == 0
    assert "Number of GPUs" in done.out
    assert "n2 0" in done.err


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--fleet",), "--fleet plans for several hosts, and needs a file of each of two or more"),
        (("--fleet", "--from", "7gforce"), "needs a file of each of two or more"),
        (("--fleet", "--from", "7gforce", "nowhere.json"), "nowhere cannot be read"),
        (("--fleet", "--from", "7gforce", "dgx1-p100", "--explain"), "--explain is for one host"),
        (("--fleet", "--from", "7gforce", "dgx1-p100", "--what-if", "acs off"), "--what-if is for one host"),
        (("--fleet", "--from", "7gforce", "dgx1-p100", "--format", "env"), "--format env is for one host"),
        (("--from", "7gforce", "--node-rank", "0"), "mutually exclusive"),
    ],
)
def test_what_does_not_fit_is_refused_in_two_lines(call: Call, options: tuple[str, ...], what: str) -> None:
    done = call("plan", "--model", "alexnet", *options)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 2)
    assert what in done.err.splitlines()[0]
    assert "--num-hosts" not in done.err, "which files do not go with"
