"""A forked program differs from one in a fresh interpreter in its time only."""

import json
import os
import subprocess

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

PRINTS = """
import json, os, sys
import tensorflow as tf
sys.stderr.write("a word on the side")
os.environ["LEFT_BEHIND"] = "1"
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * int(sys.argv[1]))
print(json.dumps([sys.argv, len(tf.config.list_logical_devices()), os.getcwd(), sorted(before)]))
"""


def test_each_program_has_arguments_environment_and_devices_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import os; before = dict(os.environ)\n" + PRINTS
    run_program("-c", code, "3")  # leaves nothing to the next
    monkeypatch.setenv("FOR_2", "1")
    expected = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    forked, fresh = run_program("-c", code, "2"), run_program("-c", code, "2", more={"FRESH": "1"})
    assert (forked.returncode, fresh.returncode) == (0, 0), forked.stderr + fresh.stderr
    arguments, count, folder, environment = json.loads(forked.stdout)
    assert (arguments, count) == (["-c", "2"], 2)
    assert [arguments, count, folder, sorted([*environment, "FRESH"])] == json.loads(fresh.stdout)
    assert set(expected) - {"OPENBLAS_NUM_THREADS"} <= set(environment)
    assert "LEFT_BEHIND" not in environment
    assert "a word on the side" in forked.stderr


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
