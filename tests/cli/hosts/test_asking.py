"""`inspect` and `plan` of several hosts, which are asked by a stand-in for ssh, and of files."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gputopo
from gputopo.launch import HostOptions, ask_for_machines, find_hosts
from gputopo.launch.hosts import HostProcess, Joining
from gputopo.values import schema
from gputopo.values.machine import Machine
from gputopo.values.run.plan import Plan
from tests.cli.conftest import Call
from tests.launch.hosts.environs import slurm_step
from tests.planner.joint_machines import two_switches


def test_hosts_that_do_not_answer_cost_themselves_and_are_named_by_the_words_of_ssh(
    call: Call, ssh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_output, others = HostProcess.output, threading.Semaphore(0)

    def output(process: HostProcess, within_s: float, is_whole: Callable[[bytes], bool]) -> bytes:
        assert within_s == 300
        if process.start.host != "hangs":
            try:
                return read_output(process, within_s, is_whole)
            finally:
                others.release()
        for _ in range(4):
            assert others.acquire(timeout=60), "the others do not wait for it"
        return read_output(process, 0.1, is_whole)

    monkeypatch.setattr(HostProcess, "output", output)
    done = call("inspect", "--json", "--hosts", "hangs,refused,n1,bare,n2", "--join-timeout", "300")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [host for kind in found["kinds"] for host in kind["hosts"]] == ["n1", "n2"]
    assert found["unread"] == ["hangs", "refused", "bare"]
    says = str([one for one in found["findings"] if one["id"] == "fleet.no_answer"])
    assert "hangs did not answer within 300 s" in done.err
    for words in ("ssh cannot connect to refused: ssh: connect to host refused port 22", "bare: sh: "):
        assert words in done.err
        assert words in says


def pretends(folder: Path, *lines: str) -> Path:
    """Write a Python for --remote-python that runs these lines of a shell, and has each answer in $FOLDER."""
    script = folder / "python"
    script.write_text("\n".join(["#!/bin/sh", f"cd {folder}", *lines, ""]))
    script.chmod(0o755)
    return script


def answer(machine: Machine | None = None, **fields: Any) -> bytes:
    joining = Joining(rank=0, name="x", version=gputopo.__version__, machine=machine)
    return schema.encode(msgspec.structs.replace(joining, **fields)) + b"\n"


def test_what_a_host_prints_before_its_answer_is_skipped(call: Call, ssh: None, tmp_path: Path) -> None:
    (tmp_path / "line").write_bytes(answer(msgspec.structs.replace(two_switches(), source="recording")))
    python = pretends(
        tmp_path, 'echo "Welcome to $HOSTNAME {"', "printf 'no newline '", "cat line", "sleep 60"
    )
    done = call("inspect", "--json", "--hosts", "n1,n2", "--remote-python", python)
    assert done.code == 0, done.err
    assert json.loads(done.out)["kinds"][0]["hosts"] == ["n1", "n2"]


def test_an_answer_beyond_what_a_host_has_costs_that_host(call: Call, ssh: None, tmp_path: Path) -> None:
    own = msgspec.structs.replace(two_switches(), source="recording")
    many = tuple(msgspec.structs.replace(own.gpus[0], index=index) for index in range(65))
    named = msgspec.structs.replace(own, host=msgspec.structs.replace(own.host, cpu_model="\0"))
    given = {
        "fine": answer(own),
        "many": answer(msgspec.structs.replace(own, gpus=many)),
        "nul": answer(named),
    }
    for host, text in given.items():
        (tmp_path / host).write_bytes(text)
    python = pretends(tmp_path, "test $HOSTNAME = long && yes | tr -d '\\n'", "cat $HOSTNAME")
    hosts = "fine,long,many,none,nul"
    done = call("inspect", "--json", "--hosts", hosts, "--remote-python", python)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["kinds"][0]["hosts"], found["unread"]) == (
        ["fine"],
        ["long", "many", "none", "nul"],
    )
    for says in (
        "long answered with more than",
        "many answered with 65 gpus, more than the limit of 64",
        "none ended with exit code 1 before gputopo started",
        "nul answered with control characters",
    ):
        assert f"gputopo: {says}" in done.err


def test_a_host_that_is_asked_by_its_address_is_called_by_a_name_that_is_one(
    call: Call, ssh: None, tmp_path: Path
) -> None:
    own = msgspec.structs.replace(two_switches(), source="recording")
    for host, name in {"10.9.9.1": "n7", "10.9.9.2": "../n8", "10.9.9.3": "n" * 300 + "!"}.items():
        (tmp_path / host).write_bytes(answer(own, name=name))
    hosts = ("--hosts", "10.9.9.1,10.9.9.2,10.9.9.3", "--remote-python", pretends(tmp_path, "cat $HOSTNAME"))
    done = call("inspect", *hosts, "--record", tmp_path / "fleet")
    assert done.code == 0, done.err
    assert sorted(one.stem for one in (tmp_path / "fleet").iterdir()) == ["10.9.9.2", "10.9.9.3", "n7"]


def test_where_no_host_answers_the_first_reason_is_the_error(call: Call, ssh: None) -> None:
    done = call("inspect", "--fleet", "--hosts", "denied,refused")
    assert (done.code, done.out) == (3, "")
    assert "ssh-copy-id denied" in done.err
    assert [done.err.count(f"ssh cannot connect to {host}: ") for host in ("denied", "refused")] == [1, 1]


def test_a_host_of_another_version_is_named(call: Call, ssh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputopo.__version__", "99.0")
    done = call("inspect", "--hosts", "n1,n2")
    assert done.code == 2
    assert "99.0 here" in done.err
    assert "install the same version on all hosts" in done.err


def test_the_first_rank_of_a_step_asks_all_by_one_more_and_the_others_do_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm_step().items():
        monkeypatch.setenv(name, text)
    bin = tmp_path / "bin"
    bin.mkdir()
    lines = {"0": answer(name="n1"), "1": answer(name="n2.cluster")}
    labelled = [(task, line[at : at + 99]) for task, line in lines.items() for at in range(0, len(line), 99)]
    (bin / "lines").write_text("".join(f"{task}: {part.decode().rstrip()}\n" for task, part in labelled))
    (bin / "srun").write_text(f'#!/bin/sh\necho "$@" >>{bin}/words\necho "1: motd"\ncat {bin}/lines\n')
    (bin / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    hosts = find_hosts(HostOptions(), os.environ)
    assert hosts is not None
    assert [*ask_for_machines(hosts, HostOptions(remote_python="/there/python"))] == ["n1", "n2"]
    (step,) = (bin / "words").read_text().splitlines()
    assert "--overlap" in step
    assert "--nodes=2 --nodelist n1,n2 /there/python -P -m gputopo.launch.hosts.answer inspect n1,n2" in step
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
    assert "does not list the other hosts" in done.err
    assert "inspect --record" in done.err


def test_options_of_hosts_are_not_ignored_beside_files(call: Call, without_gpu: None) -> None:
    done = call("inspect", "--from", "7gforce", "--node-rank", "0")
    assert (done.code, done.out) == (2, "")
    assert "cannot be combined" in done.err
    assert call("inspect", "--num-hosts", "1").code == 0


def test_hosts_without_gpus_are_nothing_to_plan_for(call: Call, ssh: None) -> None:
    done = call("plan", "--model", "alexnet", "--hosts", "n1,n2")
    assert done.code == 3
    assert "n2 has answered" in done.err
    assert "there is no GPU to plan for on any of the hosts" in done.err


def test_hosts_are_planned_for_as_they_answer(
    call: Call, ssh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = msgspec.structs.replace(two_switches(), source="recording")
    (tmp_path / "line").write_bytes(answer(own, address="10.0.0.9"))
    answers = pretends(tmp_path, "cat line")
    asked = ("plan", "--model", "resnet50", "--single-gpu-images-per-sec", "400", "--json")
    done = call(*asked, "--hosts", "n1,refused,n2", "--remote-python", answers)
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
        (("--fleet", "--from", "7gforce"), "needs files of at least two hosts"),
        (("--fleet", "--from", "7gforce", "nowhere.json"), "nowhere cannot be read"),
        (("--fleet", "--from", "7gforce", "dgx1-p100", "--explain"), "--explain is for one host"),
        (("--fleet", "--from", "7gforce", "dgx1-p100", "--format", "env"), "--format env is for one host"),
        (("--from", "7gforce", "--node-rank", "0"), "cannot be combined"),
        (("--from", "7gforce", "--insecure"), "--from and --insecure cannot be combined"),
    ],
)
def test_what_does_not_fit_is_refused_in_two_lines(call: Call, options: tuple[str, ...], what: str) -> None:
    done = call("plan", "--model", "alexnet", *options)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 2)
    assert what in done.err.splitlines()[0]
    assert "--num-hosts" not in done.err, "which files do not go with"
