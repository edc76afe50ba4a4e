"""Specs of short runs."""

import shlex
from pathlib import Path

import psutil
import pytest

from gputopo.launch import Site, Target
from gputopo.launch.jobs import Trial, trial_of, tune
from gputopo.launch.supervise import RunFolder
from gputopo.values import schema
from gputopo.values.run.plan import Autotune, Plan, TimedRun
from gputopo.values.run.result import Result
from gputopo.values.run.spec import Lifecycle
from tests import there
from tests.kit_workers.stand_in import PYTHON, WORKER, behaves, in_place_of
from tests.launch.specs import cpu_spec, machine, plan_for


def on_cpus(plan: Plan) -> Target:
    return Target("cpu", Site(machine(0)), plan)


PS = Trial(on_cpus(plan_for((), "cpu")), trial_of(cpu_spec()))
COPIES = Trial(
    on_cpus(plan_for((), None, variable_update="replicated", all_reduce="copy")),
    trial_of(cpu_spec(variable_update="replicated", ps_device=None, all_reduce="copy")),
)
# Steps of 0.2 s with variables on the CPU, of 0.1 s with copies, about.
STEPS = """
import json, os, sys
seconds = 0.1 if json.load(open(sys.argv[1]))["variable_update"] == "replicated" else 0.2
for step in range(1, 5):
    took = seconds * (1.0, 1.01, 0.98, 1.03)[step - 1]
    event = {"event": "step", "time_s": 1.0, "step": step, "seconds": took, "images": 8, "loss": 1.0}
    os.write(int(sys.argv[2]), json.dumps({**event, "marks": []}).encode() + b"\\n")
"""
STEPS_WORK = f'exec {PYTHON} -IS -c {shlex.quote(STEPS)} "$@"'


def unless(pattern: str, other: str) -> str:
    """Return a worker with those steps; another command where its folder fits a pattern of a shell."""
    return f'case "$1" in {pattern}) {other} ;; *) {STEPS_WORK} ;; esac'


def stored(folder: Path) -> Autotune:
    return schema.decode((folder / "autotune.json").read_bytes(), Autotune, origin="autotune.json")


def tuned(tmp_path: Path, worker: str = STEPS_WORK) -> tuple[Autotune, int]:
    with in_place_of(WORKER, worker, tmp_path / "stand-in"):
        return tune([PS, COPIES], tmp_path)


def test_the_faster_is_found_and_stored_with_its_runs(tmp_path: Path, ends_in_time: None) -> None:
    found, code = tuned(tmp_path)
    assert (found.winner, found.settled, code) == (1, "lead", 0)
    assert [one.images_per_sec for one in found.measured] == pytest.approx([40, 80], rel=0.03)
    assert stored(tmp_path) == found
    for name in ("1-1", "1-2", "2-2", "2-1"):
        stored_result = RunFolder(tmp_path / "autotune" / name).result.read_bytes()
        result = schema.decode(stored_result, Result, origin=name)
        assert result.status == "complete"
    speed = there(result.throughput)
    assert found.measured[0].runs[1] == TimedRun(speed.median, speed.jitter / speed.median / 2)  # four steps
    assert speed.jitter > 0


def test_a_signal_in_a_run_keeps_what_was_measured_and_leaves_no_process(
    tmp_path: Path, ends_in_time: None
) -> None:
    before = set(psutil.Process().children(recursive=True))
    hangs_second = unless("*/1-2/*", f"kill -TERM $PPID; {behaves('hangs')}")
    found, ended = tuned(tmp_path, hangs_second)
    assert (found.winner, found.settled, ended) == (0, "stopped", 143)
    assert stored(tmp_path) == found
    assert set(psutil.Process().children(recursive=True)) == before


def test_one_that_fails_has_its_cause_and_the_other_wins(tmp_path: Path, ends_in_time: None) -> None:
    found, code = tuned(tmp_path, unless("*-1/*", behaves("killed")))
    assert (found.winner, found.settled, code) == (1, "failed", 0)
    assert found.measured[0].failure


def test_a_trial_counts_seconds_and_saves_nothing() -> None:
    spec = trial_of(cpu_spec(lifecycle=Lifecycle(checkpoints="/c", resume=True, trace_steps=(5,))))
    assert (spec.lifecycle, spec.num_batches) == (Lifecycle(), None)
    assert spec.time_budget_s is not None
    timed = trial_of(cpu_spec(max_error=0.01))
    assert (timed.max_error, timed.min_warmup_s) == (None, 1.0)
    assert trial_of(cpu_spec(min_warmup_s=None)).min_warmup_s is None
    counted = trial_of(cpu_spec(), num_batches=7)
    assert (counted.num_batches, counted.time_budget_s, counted.max_batches) == (7, None, 7)
