"""`gputopo plan` and `run --dry-run` for several hosts."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gputopo.launch.hosts.addresses import free_port
from gputopo.values import schema
from gputopo.values.run.plan import Plan
from tests.cli.conftest import Call
from tests.launch.hosts.environs import slurm_step
from tests.planner.joint_machines import two_switches


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
    assert "2 hosts     n1, n2: GPUs 0-7" in table
    assert "16 of 2 hosts" in table
    assert "Environment" not in table
    assert max(map(len, table.splitlines())) <= 80
    markdown = call(*asked, "--format", "markdown").out
    assert markdown.startswith("### Plan for resnet50")
    assert "| 2 hosts | n1, n2: GPUs 0-7 |" in markdown


def test_the_number_of_gpus_may_be_left_to_the_plan(call: Call, files: list[Path]) -> None:
    asked = ("plan", "--model", "vgg16", "--single-gpu-images-per-sec", "400", "--from", *files, "--fleet")
    done = call(*asked, "--num-gpus", "auto", "--gain", "0.4")
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


def test_hosts_without_gpus_meet_and_are_told_that_there_is_nothing_to_plan_for(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    hosts = f"localhost:{free_port()},localhost:{free_port()}"
    guest = subprocess.Popen(
        (*f"{sys.executable} -m gputopo plan --model alexnet --node-rank 1 --hosts".split(), hosts),
        env={**os.environ, "GPUTOPO_ROOT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call("plan", "--model", "alexnet", "--hosts", hosts, "--node-rank", "0", "--join-timeout", "30")
    out, err = guest.communicate(timeout=60)
    assert (guest.returncode, out) == (0, ""), err
    assert "rank 0 has what was read of this host" in err
    assert (done.code, "there is no GPU to plan for on any of the hosts" in done.err) == (3, True)


def test_a_plan_under_a_starter_waits_for_its_hosts(
    call: Call, without_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm_step().items():
        monkeypatch.setenv(name, text)
    assert "rank 0 is 'n1'" in call("plan", "--model", "alexnet", "--join-timeout", "0.1").err
    assert "there is no GPU to plan for" in call("plan", "--model", "alexnet", "--num-hosts", "1").err


def test_a_dry_run_of_several_hosts_shows_the_plan_and_starts_nothing(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    hosts = f"localhost:{free_port()},localhost:{free_port()}"
    guest = subprocess.Popen(
        (
            *f"{sys.executable} -m gputopo run --cpu --dry-run --model trivial --node-rank 1".split(),
            "--hosts",
            hosts,
        ),
        env={**os.environ, "GPUTOPO_ROOT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call(
        *("run", "--cpu", "--dry-run", "--model", "trivial", "--node-rank", "0"),
        *("--hosts", hosts, "--join-timeout", "30"),
    )
    assert guest.communicate(timeout=60)
    assert (guest.returncode, done.code) == (0, 0), done.err
    assert "training on 4 logical CPU devices of 2 hosts" in done.out
    assert "Starts" in done.out
