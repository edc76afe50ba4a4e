"""Runs on several hosts as other starters start them: what these give a process is understood as meant."""

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gputopo import pages
from gputopo.launch import Allocation, FoundHosts, HostOptions, find_hosts
from gputopo.launch.hosts import read_hostfile, read_hosts
from gputopo.values import schema
from tests.cli.conftest import Call
from tests.launch.hosts.environs import open_mpi_5, slurm_step
from tests.launch.hosts.test_planning import by_rails

PATTERN = ("run", "--from", "dgx1-p100", "--dry-run")
PROGRAM = ["python", "a b.py", "--name=it's", "$HOME $(id) $$", "ü # x: y", "--", ""]


def hosts_in(command: Iterable[str]) -> HostOptions:
    """Return the options of hosts in a command."""
    words = list(command)
    fields: dict[str, Any] = {}
    if "--hosts" in words:
        fields["hosts"] = read_hosts("--hosts", words[words.index("--hosts") + 1])
    if "--num-hosts" in words:
        fields["num_hosts"] = int(words[words.index("--num-hosts") + 1])
    return HostOptions(**fields)


def exported(call: Call, *words: str, program: list[str] = PROGRAM) -> str:
    done = call(*PATTERN, *words, "--", *program)
    assert (done.code, done.err) == (0, "")
    return done.out


def directives(script: str) -> dict[str, str]:
    """Return the options of a batch script."""
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def named(found: FoundHosts | None) -> tuple[int, int, list[str | None]]:
    assert isinstance(found, Allocation)
    return found.rank, found.size, [host.name for host in found.hosts]


def test_a_batch_script_starts_one_process_on_each_node_which_finds_the_others(call: Call) -> None:
    script = exported(call, "--hosts", "n[1-3]", "--num-gpus", "6", "--format", "sbatch")
    asked = directives(script)
    assert (asked["nodes"], asked["ntasks-per-node"], asked["gres"]) == ("3", "1", "gpu:2")
    assert not {"exclusive", "mem"} & set(asked)
    assert "\nGPUTOPO_SECRET=$(od " in script
    assert "\nexport GPUTOPO_SECRET\n" in script
    command = shlex.split(script.splitlines()[-1])
    assert command[:2] == ["exec", "srun"]
    assert "--kill-on-bad-exit=1" in command, "srun ends a program on the other hosts; rank 0 a training"
    run = command[command.index("gputopo") :]
    assert run[run.index("--") + 1 :] == PROGRAM
    assert run[run.index("--num-gpus") + 1] == "6"
    for rank in (0, 2):
        environ = slurm_step(asked["nodelist"], rank, count=int(asked["nodes"]), tasks="1(x3)")
        assert named(find_hosts(hosts_in(run), environ)) == (rank, 3, ["n1", "n2", "n3"])


def test_a_batch_script_without_names_takes_any_nodes_and_its_time_is_the_predicted_one(
    call: Call, tmp_path: Path
) -> None:
    script = exported(call, "--num-hosts", "2", "--format", "sbatch")
    assert {"nodelist", "time"} & directives(script).keys() == set()
    assert "\n##SBATCH --time=HH:MM:SS\n" in script, "to fill in"
    assert "--gpus 0,1,2,3,4,5,6,7 " in script
    schema.write(tmp_path / "rails.json", by_rails())  # whose network is known
    rails = str(tmp_path / "rails.json")
    words = ["run", "--from", rails, "--dry-run", "--format", "sbatch", "--num-hosts", "2"]
    words += ["--model", "resnet50", "--num-batches", "36000"]
    minutes = []
    for more in ((), ("--drill", "slow-gpu=1:0.9")):  # with NCCL between hosts, and without
        hours, minute, _ = directives(call(*words, *more).out)["time"].split(":")
        minutes.append(60 * int(hours) + int(minute) - 15)
    fleet = ("plan", "--model", "resnet50", "--fleet", "--json", "--from", rails, rails)
    plan = json.loads(call(*fleet).out)
    for at_most, one in zip(minutes, (plan["choice"], plan["candidates"][1]), strict=True):
        slowest_ms = one["step_ms"] * one["images_per_sec"] / one["images_per_sec_low"]
        assert at_most == pytest.approx(36_010 * slowest_ms / 60_000, abs=1)
    assert minutes[0] < 0.9 * minutes[1], "NCCL is faster"


def test_a_batch_script_of_named_gpus_takes_whole_nodes_and_has_the_options_that_were_given(
    call: Call,
) -> None:
    given = (
        "partition=gpu",
        "account=a1",
        "array=1-4",
        "mem-per-cpu=4G",
        "gpus-per-node=v100:8",
        "time=9:00",
    )
    words = [word for one in given for word in ("--sbatch-option", one)]
    script = exported(call, "--num-hosts", "2", "--gpus", "1,3", *words, "--format", "sbatch")
    asked = directives(script)
    assert tuple(f"{name}={value}" for name, value in asked.items())[: len(given)] == given
    assert not {"gres", "mem"} & asked.keys(), "Slurm takes one of several that mean the same"
    assert asked["exclusive"] == ""
    assert "--gpus 1,3 " in script
    assert "sbatch-option" not in script
    one = exported(call, "--gpus", "1,3", "--sbatch-option", "partition=gpu", "--format", "sbatch")
    assert directives(one)["partition"] == "gpu"
    done = call(*PATTERN, "--sbatch-option", "x=1\n#", "--format", "sbatch", "--", *PROGRAM)
    assert (done.code, done.out) == (2, "")
    assert "--sbatch-option cannot be" in done.err


def test_a_hostfile_has_a_slot_a_host_and_the_command_for_it(call: Call) -> None:
    text = exported(call, "--hosts", "n1:4000,a", "--num-gpus", "4", "--format", "hostfile")
    first, *lines = text.splitlines()
    assert lines == ["n1 slots=1", "a slots=1"]
    assert [host.name for host in read_hostfile("it", text)] == ["n1", "a"]
    command = shlex.split(first.removeprefix("# "))
    assert command[0] == "mpirun"
    assert command[command.index("-n") + 1] == "2"
    for rank in (0, 1):
        found = find_hosts(hosts_in(command), open_mpi_5(rank, 2))
        assert named(found) == (rank, 2, ["n1", "a"])
        assert isinstance(found, Allocation)
        assert found.leader.port == 4000
    assert command[command.index("--") + 1 :] == PROGRAM


def test_the_pods_of_the_example_for_kubernetes_find_one_another_and_give_options_of_run(call: Call) -> None:
    example = (pages.read("hosts")).partition("```yaml\n")[2].partition("```")[0]
    command = re.findall(r"[^\s\[\],\"]+", example.partition("command: [")[2].partition("]")[0])
    known = call("run", "--help-all").out
    assert [word for word in command if word.startswith("--") and f" {word} " not in known] == []
    (leader,) = re.findall(r"MASTER_ADDR, value: ([\w.-]+)", example)
    (count,) = re.findall(r"completions: (\d+)", example)
    environ = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "gputopo-2", "MASTER_ADDR": leader}
    found = find_hosts(hosts_in(command), environ)
    assert named(found) == (2, int(count), [leader, *[None] * (int(count) - 1)])


def test_a_training_by_the_core_has_its_options_and_no_placement_of_one_host(call: Call) -> None:
    asked = ("--batch-size", "8", "--precision", "fp16", "--join-timeout", "300", "--all-reduce", "ring")
    done = call(*PATTERN, "--model", "resnet50", *asked, "--hosts", "a,b", "--format", "sbatch")
    assert done.code == 0
    for word in ("--model", "resnet50", *asked, "--require-gpu"):
        assert word.removeprefix("--") in done.out
    assert "variable-update" not in done.out
    assert "dgx1" not in done.out


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        ("--format hostfile", "is for several hosts", "--hosts LIST"),
        ("--num-hosts 2 --format hostfile", "needs the names of the hosts", "--hosts LIST"),
        ("--hosts a,b --num-gpus 3 --format sbatch", "cannot be shared equally by 2 hosts", "multiple of 2"),
        ("--hosts 10.0.0.1,10.0.0.2 --format sbatch", "10.0.0.1 is an address", "sinfo"),
        ("--hosts a,b --node-rank 1 --format sbatch", "--node-rank cannot be combined with", "remove"),
        ("--hosts a,b --num-hosts 3 --format hostfile", "lists 2 hosts, but --num-hosts is 3", "remove"),
        ("--num-hosts 2 --all-reduce nccl_op --format sbatch", "works within one process", "hierarchical"),
        ("--num-hosts 2 --num-gpus auto --format sbatch", "--num-gpus auto is for one host", "remove"),
        ("--hosts a,b --format docker", "is for one host", "--num-hosts 1"),
        ("--hosts a,b --restart 2 --format sbatch", "--restart is for one host", "remove --restart"),
    ],
)
def test_what_cannot_be_known_or_started_so_is_refused_in_one_line(
    call: Call, words: str, what: str, hint: str
) -> None:
    done = call(*PATTERN, "--model", "resnet50", *words.split())
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 2)
    assert what in done.err.splitlines()[0]
    assert hint in done.err.splitlines()[1]


def test_a_host_of_a_training_that_ends_does_not_end_the_others(call: Call) -> None:
    done = call(*PATTERN, "--model", "resnet50", "--hosts", "n[1-2]", "--format", "sbatch")
    assert "--kill-on-bad-exit=0" in shlex.split(done.out.splitlines()[-1])


def test_a_line_break_that_a_comment_cannot_have_is_refused(call: Call) -> None:
    done = call(*PATTERN, "--hosts", "a,b", "--format", "hostfile", "--", "sh", "-c", "a\nb")
    assert (done.code, "line break" in done.err) == (2, True)
