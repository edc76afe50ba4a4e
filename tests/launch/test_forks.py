"""A forked program differs from one in a fresh interpreter in its time only."""

import json
import os
import subprocess

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

PRINTS = """
import os; before = sorted(os.environ)
import json, sys
sys.stderr.write("a word on the side")
os.environ["LEFT_BEHIND"] = "1"
print(json.dumps([sys.argv, os.getcwd(), before]))
"""
DEVICES = """
import sys, tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * int(sys.argv[1]))
print(len(tf.config.list_logical_devices()))
"""


def test_each_program_has_arguments_and_environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run_program("-c", PRINTS, "3")  # leaves nothing to the next
    monkeypatch.setenv("FOR_2", "1")
    expected = {*os.environ, "CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL"}
    forked, fresh = run_program("-c", PRINTS, "2"), run_program("-c", PRINTS, "2", more={"FRESH": "1"})
    assert (forked.returncode, fresh.returncode) == (0, 0), forked.stderr + fresh.stderr
    arguments, folder, environment = json.loads(forked.stdout)
    assert arguments == ["-c", "2"]
    assert [arguments, folder, sorted([*environment, "FRESH"])] == json.loads(fresh.stdout)
    assert expected - {"OPENBLAS_NUM_THREADS"} <= set(environment)
    assert "LEFT_BEHIND" not in environment
    assert "a word on the side" in forked.stderr


def test_each_program_has_devices_of_its_own() -> None:
    assert [run_program("-c", DEVICES, count).stdout for count in ("3", "2")] == ["3\n", "2\n"]


@pytest.mark.parametrize(
    ("code", "ends"), [("raise SystemExit(7)", 7), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 11)", -11)]
)
def test_how_a_program_ends_is_reported(code: str, ends: int) -> None:
    done = run_program("-c", code)
    assert done.returncode == ends
    assert ("ZeroDivisionError" in done.stderr) == (ends == 1)


def test_a_program_that_hangs_is_ended_and_the_next_one_runs() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_program("-c", "import time; time.sleep(60)", timeout_s=0.2)
    assert run_program("-c", "print('next')").stdout == "next\n"
