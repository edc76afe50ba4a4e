"""The files that an administrator copies, run as Slurm and Nagios run them."""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputopo import integrations, load, pages
from gputopo.report import RunMetrics, exposition
from gputopo.values import schema
from tests.cli.conftest import Call

ROOT = Path(__file__).parents[2]
SAYS = "one Tesla: line one\nline two"


def program(folder: Path, code: int) -> Path:
    """A program in place of gputopo that prints `SAYS` and ends with this code; 4: with 0, then with 1."""
    file = folder / "gputopo"
    last = '[ "$2" = --from ] && exit 1; exit 0' if code == 4 else f"exit {code}"
    file.write_text(f"#!/bin/sh\nprintf '%s\\n' '{SAYS}'\n{last}\n")
    file.chmod(0o755)
    return file


def ran(script: str, folder: Path, gputopo: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    file = folder / script
    file.write_text(integrations.read(script))
    tools = folder / "tools"
    tools.mkdir()
    (tools / "logger").write_text(f"#!/bin/sh\ncat > {folder}/logged\n")
    (tools / "logger").chmod(0o755)
    variables = {"PATH": f"{tools}:/usr/bin:/bin", "GPUTOPO": str(gputopo), **environment}
    return subprocess.run(["sh", str(file)], env=variables, capture_output=True, text=True, timeout=60)


def test_every_file_is_printed_and_is_on_the_page(call: Call) -> None:
    for name in integrations.FILES:
        assert call("explain", "integrations", name).out == integrations.read(name)
        assert f"`{name}`" in pages.read("integrations")
    assert call("explain", "integrations", "Dockerfil").code == 2


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (3, 1), (70, 0)])
def test_the_prolog_fails_for_faults_of_the_node_alone(code: int, ends: int, tmp_path: Path) -> None:
    done = ran("slurm-prolog.sh", tmp_path, program(tmp_path, code), SLURM_JOB_GPUS="0,1")
    assert done.returncode == ends
    assert (tmp_path / "logged").exists() == bool(ends)
    if ends:
        assert (tmp_path / "logged").read_text() == f"{SAYS}\n"


@pytest.mark.parametrize(
    ("code", "ends", "word"),
    [
        (0, 0, "OK"),
        (4, 1, "WARNING"),
        (1, 2, "CRITICAL"),
        (3, 2, "CRITICAL"),
        (70, 3, "UNKNOWN"),
    ],
)
def test_the_plugin_ends_as_monitoring_plugins_do(code: int, ends: int, word: str, tmp_path: Path) -> None:
    done = ran("check_gputopo.sh", tmp_path, program(tmp_path, code))
    assert (done.returncode, done.stdout) == (ends, f"GPUTOPO {word}: one Tesla: line one\n")


def test_a_node_that_has_lost_all_its_gpus_is_no_healthy_node(tmp_path: Path) -> None:
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    file = tmp_path / "gputopo"
    file.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m gputopo "$@"\n')
    file.chmod(0o755)
    done = ran("slurm-prolog.sh", tmp_path, file, SLURM_JOB_GPUS="0", GPUTOPO_ROOT=str(tmp_path / "root"))
    assert done.returncode == 1, done.stdout


def test_the_action_fails_for_a_gpu_that_is_missing_since_the_recording(call: Call, tmp_path: Path) -> None:
    machine = load("7gforce").machine
    before, now = tmp_path / "before.json", tmp_path / "now.json"
    schema.write(before, machine)
    kept = tuple(gpu for gpu in machine.gpus if gpu.index != 6)
    links = tuple(link for link in machine.links if 6 not in (link.a, link.b))
    schema.write(now, replace(machine, gpus=kept, links=links, bandwidth=None))
    document = call("inspect", "--from", now, "--diff", before, "--json").out
    (tmp_path / "difference.json").write_text(document)
    script = integrations.read("github-actions.yml").partition("<<'END'\n")[2].partition("          END\n")[0]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, "GPU 6" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("checker", "name"),
    [
        (["shellcheck"], "slurm-prolog.sh"),
        (["shellcheck"], "check_gputopo.sh"),
        (["promtool", "check", "rules"], "prometheus-rules.yml"),
        (["hadolint"], "Dockerfile"),
    ],
)
def test_the_checker_of_its_language_finds_nothing(checker: list[str], name: str, tmp_path: Path) -> None:
    own = Path(sys.executable).with_name(checker[0])
    found = str(own) if own.exists() else shutil.which(checker[0])
    if found is None:
        pytest.skip(f"there is no {checker[0]} here")
    (tmp_path / name).write_text(integrations.read(name))
    done = subprocess.run(
        [found, *checker[1:], str(tmp_path / name)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alert_rules_ask_for_metrics_that_there_are() -> None:
    known = exposition(load("7gforce"))
    asked = set(re.findall(r"expr:.*?(gputopo_\w+)", integrations.read("prometheus-rules.yml")))
    assert asked
    of_runs = {name for name in asked if name.startswith("gputopo_run_")}
    assert all(f"\n{name}" in known for name in asked - of_runs)
    source = Path(str(RunMetrics.__module__).replace(".", "/") + ".py").read_text()
    assert all(f'"{name.removeprefix("gputopo_")}"' in source for name in of_runs)


def test_the_prolog_lets_jobs_without_gpus_pass_and_nodes_without_gputopo(tmp_path: Path) -> None:
    assert ran("slurm-prolog.sh", tmp_path, program(tmp_path, 3)).returncode == 0
    (tmp_path / "other").mkdir()
    missing = ran("slurm-prolog.sh", tmp_path / "other", tmp_path / "none", SLURM_JOB_GPUS="0")
    assert missing.returncode == 0
