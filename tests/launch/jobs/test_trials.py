"""Specs of short runs."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from gputopo.launch import Site, Target
from gputopo.launch.jobs import run
from gputopo.launch.jobs.trials import FILE, Trial, timed, trial_of, tune
from gputopo.launch.supervise.run_folder import RunFolder
from gputopo.values import schema
from gputopo.values.run.plan import Autotune, Plan, TimedRun
from gputopo.values.run.result import Result
from gputopo.values.run.spec import Lifecycle
from tests import there
from tests.kit_workers import misbehave
from tests.launch.specs import cpu_spec, machine, plan_for


def on_cpus(plan: Plan) -> Target:
    return Target("cpu", Site(machine(0)), plan)


PS = Trial(on_cpus(plan_for((), "cpu")), trial_of(cpu_spec()))
COPIES = Trial(
    on_cpus(plan_for((), None, variable_update="replicated", all_reduce="copy")),
    trial_of(cpu_spec(variable_update="replicated", ps_device=None, all_reduce="copy")),
)
# Steps of 0.2 s with variables on the CPU, of 0.1 s with copies.
WORKER = """
import json, os, sys
seconds = 0.1 if json.load(open(sys.argv[1]))["variable_update"] == "replicated" else 0.2
for step in range(1, 4):
    event = {"event": "step", "time_s": 1.0, "step": step, "seconds": seconds, "images": 8, "loss": 1.0}
    os.write(int(sys.argv[2]), json.dumps({**event, "marks": []}).encode() + b"\\n")
"""


def pretends(spec: Path, events_fd: int) -> Sequence[str]:
    return (sys.executable, "-IS", "-c", WORKER, str(spec), str(events_fd))


def stored(folder: Path) -> Autotune:
    return schema.decode((folder / FILE).read_bytes(), Autotune, origin=FILE)


@pytest.fixture(autouse=True)
def pretending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that pretends, unless a test has another one."""
    monkeypatch.setattr(run, "worker_command", pretends)


def test_the_faster_is_found_and_stored_with_its_runs(tmp_path: Path, ends_in_time: None) -> None:
    found, code = tune([PS, COPIES], tmp_path)
    assert (found.winner, found.settled, code) == (1, "lead", 0)
    assert [one.images_per_sec for one in found.measured] == [pytest.approx(40), pytest.approx(80)]
    assert stored(tmp_path) == found
    for name in ("1-1", "1-2", "2-2", "2-1"):
        stored_result = RunFolder(tmp_path / "autotune" / name).result.read_bytes()
        result = schema.decode(stored_result, Result, origin=name)
        assert result.status == "complete"
    unsteady = replace(result, steps=4, throughput=replace(there(result.throughput), median=80.0, jitter=8.0))
    assert timed(unsteady) == TimedRun(80.0, 0.1 / 2)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_a_run_keeps_what_was_measured_and_leaves_no_process(
    tmp_path: Path, ends_in_time: None, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals, code: int
) -> None:
    before = set(psutil.Process().children(recursive=True))

    def hangs_second(spec: Path, events_fd: int) -> Sequence[str]:
        if spec.parent.name == "1-1":
            return pretends(spec, events_fd)
        os.kill(os.getpid(), signum)
        return (sys.executable, "-IS", misbehave.__file__, "hangs", str(spec), str(events_fd))

    monkeypatch.setattr(run, "worker_command", hangs_second)
    found, ended = tune([PS, COPIES], tmp_path)
    assert (found.winner, found.settled, ended) == (0, "stopped", code)
    assert stored(tmp_path) == found
    assert set(psutil.Process().children(recursive=True)) == before


def test_one_that_fails_has_its_cause_and_the_other_wins(
    tmp_path: Path, ends_in_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_fails(spec: Path, events_fd: int) -> Sequence[str]:
        if spec.parent.name.endswith("-1"):
            return (sys.executable, "-IS", misbehave.__file__, "killed", str(spec), str(events_fd))
        return pretends(spec, events_fd)

    monkeypatch.setattr(run, "worker_command", first_fails)
    found, code = tune([PS, COPIES], tmp_path)
    assert (found.winner, found.settled, code) == (1, "failed", 0)
    assert found.measured[0].failure


def test_a_trial_counts_seconds_and_saves_nothing() -> None:
    spec = trial_of(cpu_spec(lifecycle=Lifecycle(checkpoints="/c", resume=True, trace_steps=(5,))))
    assert (spec.lifecycle, spec.num_batches) == (Lifecycle(), None)
    assert spec.time_budget_s is not None
    timed = trial_of(cpu_spec(max_error=0.01))
    assert (timed.max_error, timed.min_warmup_s) == (None, 1.0)
    assert trial_of(cpu_spec(min_warmup_s=None)).min_warmup_s is None


def test_a_trial_counts_steps_where_they_are_asked_for() -> None:
    spec = trial_of(cpu_spec(), num_batches=7)
    assert (spec.num_batches, spec.time_budget_s, spec.max_batches) == (7, None, 7)
