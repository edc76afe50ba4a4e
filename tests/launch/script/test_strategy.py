"""The strategy for the user's script: what it plans for without TensorFlow, and how Keras trains in it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.launch.jobs.claims import claimed_by_others
from gputopo.launch.script.nearest import nearest
from gputopo.launch.script.strategy import lines_of, planned
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.machine import Driver, Machine
from tests.launch.forks import run_program
from tests.launch.specs import machine

NOTHING = Machine(source="live", driver=Driver(status="no_device"))


def test_under_a_narrowed_environment_the_plan_is_of_the_visible_gpus_in_their_order() -> None:
    environ = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-33-aa,GPU-11-aa"}
    target = planned(machine(), environ, claimed={})
    assert target.plan.choice.gpus == (3, 1)
    assert target.plan.environment["CUDA_VISIBLE_DEVICES"] == environ["CUDA_VISIBLE_DEVICES"]


def test_a_number_is_chosen_among_those_that_are_visible() -> None:
    environ = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,2,3"}
    assert planned(machine(), environ, num_gpus=2, claimed={}).plan.choice.gpus == (2, 3)


def test_alone_it_plans_for_the_machine_without_what_others_have_claimed() -> None:
    assert planned(machine(), {}, num_gpus=2, claimed={}).plan.choice.gpus == (2, 3)
    taken = {3: "in use by another run"}
    assert planned(machine(), {}, num_gpus=2, claimed=taken).plan.choice.gpus == (0, 1)
    with pytest.raises(HardwareError):
        planned(machine(), {}, gpus=[3], claimed=taken)


def test_without_gpus_it_is_as_many_cpu_devices_and_both_lines_say_why() -> None:
    target = planned(NOTHING, {}, num_gpus=3, claimed={})
    what, why = lines_of(target, nearest(target.plan.choice, "cpu", 3))
    assert what == "gputopo: CentralStorageStrategy on 3 logical CPU devices (No NVIDIA device)."
    assert why == "gputopo: why: no GPU to plan for: 3 logical CPU devices."


def test_gpus_that_are_not_there_are_refused_with_a_hint() -> None:
    with pytest.raises(UsageError) as error:
        planned(NOTHING, {}, gpus=[0], claimed={})
    assert "--num-gpus" in error.value.hint


FITS = """
import json, sys
import gputopo.launch
from gputopo.launch.script import strategy as door
from gputopo.values.machine import Driver, Machine
door._machine = lambda: Machine(source="live", driver=Driver(status="no_device"))
import numpy as np, keras, tensorflow as tf
def build():
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
chosen = gputopo.launch.strategy(build, num_gpus=int(sys.argv[1]))
keras.utils.set_random_seed(1)
x = np.random.rand(16, 4).astype("float32")
y = x.sum(1, keepdims=True)
with chosen.scope():
    model = build()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    weight = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
losses = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]

@tf.function
def step(ones):
    chosen.run(lambda one: weight.assign_add(one), (ones,))
step(chosen.experimental_distribute_values_from_function(lambda context: tf.constant(1.0)))
print(json.dumps([type(chosen).__name__, chosen.num_replicas_in_sync, losses, float(weight.numpy())]))
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize("devices", [1, 2])
def test_keras_fits_and_a_loop_of_the_users_own_runs_in_its_scope(devices: int) -> None:
    done = run_program("-c", FITS, str(devices))
    assert done.returncode == 0, done.stderr
    name, replicas, losses, weight = json.loads(done.stdout)
    assert (replicas, weight) == (devices, float(devices))
    assert "OneDevice" in name if devices == 1 else "CentralStorage" in name or "Mirrored" in name
    assert losses[1] < losses[0]
    lines = [line for line in done.stderr.splitlines() if line.startswith("gputopo: ")]
    assert len(lines) == 2
    assert "logical CPU device" in lines[0]


LATE = """
import sys, keras
import gputopo.launch
from gputopo.launch.script import strategy as door
from gputopo.values.machine import Driver, Machine
door._machine = lambda: Machine(source="live", driver=Driver(status="no_device"))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
for asked in ({"num_gpus": 2}, {"model": model, "num_gpus": 2}):
    try:
        gputopo.launch.strategy(**asked)
    except door.UsageError as error:
        print(error.what, "|", error.hint)
print(type(gputopo.launch.strategy(model, num_gpus=1)).__name__)
"""


@pytest.mark.tensorflow
def test_too_late_a_call_says_what_to_do_unless_the_devices_are_those_of_the_plan() -> None:
    done = run_program("-c", LATE)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first.startswith("TensorFlow has made its devices already | call gputopo.launch.strategy")
    assert second.startswith(
        "TensorFlow has made its devices already | give the function that builds the model"
    )
    assert third == "OneDeviceStrategy"


ALONE = """
import sys, types
from gputopo.launch.script import strategy as door
from tests.launch.specs import machine
door._machine = machine
door._made = lambda target, model, built: print(*target.plan.choice.gpus, flush=True)
door.strategy(num_gpus=2, claim=sys.argv[1] == "claim")
sys.stdin.read()
"""


@pytest.mark.parametrize(("asked", "claimed"), [("claim", {2, 3}), ("leave", set())])
def test_alone_it_claims_its_gpus_until_its_process_ends_unless_it_shall_not(
    tmp_path: Path, asked: str, claimed: set[int]
) -> None:
    environment = {**os.environ, "GPUTOPO_HOME": str(tmp_path)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, asked],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as script:
        assert script.stdin is not None
        assert script.stdout is not None
        assert script.stdout.readline() == "2 3\n"
        others = claimed_by_others(machine(), tmp_path / "claims")
        assert set(others) == claimed
        assert all("gputopo.launch.strategy" in words for words in others.values())
        script.stdin.close()
        script.wait()
        assert claimed_by_others(machine(), tmp_path / "claims") == {}
