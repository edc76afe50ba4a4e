"""The strategy of a script that is one of several workers; in training: tests/cli/run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch import nearest_strategy, strategy
from gputopo.values.errors import UsageError
from gputopo.values.run.all_reduce import NAMES
from gputopo.values.run.plan import Candidate
from gputopo.values.run.spec import Backend
from tests.kit import commands
from tests.launch.forks import run_program

NCCL, HIERARCHICAL, ONE = "NCCL", "hierarchical copies", "reduction to one device"


def choice(**fields: Any) -> Candidate:
    return Candidate(**{"gpus": (0, 1), "variable_update": "replicated", **fields})


@pytest.mark.parametrize(
    ("reduction", "words"),
    [
        ("nccl", "MirroredStrategy with NCCL"),
        ("nccl_op", "MirroredStrategy with NCCL"),
        ("tf_hierarchical", "MirroredStrategy with hierarchical copies"),
        ("one_device", "MirroredStrategy with reduction to one device"),
        ("collective", "MirroredStrategy with NCCL"),
        (None, "MirroredStrategy with NCCL"),
    ],
)
def test_what_tf_distribute_has_is_used_and_nothing_is_said_to_lack(
    reduction: str | None, words: str
) -> None:
    found = nearest_strategy(choice(all_reduce=reduction), "gpu", 4)
    assert (found.words, found.lacks) == (words, None)


@pytest.mark.parametrize("backend", ["gpu", "cpu"])
def test_variables_at_a_server_become_copies_whose_gradients_are_added_up_at_it(backend: Backend) -> None:
    found = nearest_strategy(choice(variable_update="parameter_server", ps_device="cpu"), backend, 2)
    assert found.words == "MirroredStrategy with reduction to one device"
    assert (found.lacks is None) == (backend == "cpu")


def test_a_server_spread_over_gpus_is_replaced_by_nccl_and_named() -> None:
    spread = choice(variable_update="parameter_server", ps_device="gpu:spread")
    found = nearest_strategy(spread, "gpu", 2)
    assert found.words == "MirroredStrategy with NCCL"
    assert found.lacks == "variables spread over the devices"


def test_hierarchical_copies_lose_a_gradient_of_odd_devices_and_are_not_used_there() -> None:
    for reduction in ("hierarchical", "tf_hierarchical"):
        assert nearest_strategy(choice(all_reduce=reduction), "gpu", 4).reduction == HIERARCHICAL
        assert nearest_strategy(choice(all_reduce=reduction), "gpu", 3).reduction == NCCL
        assert nearest_strategy(choice(all_reduce=reduction), "cpu", 3).reduction == ONE


def test_nccl_is_for_gpus_only_unless_the_plan_has_it() -> None:
    by_name = {name: nearest_strategy(choice(all_reduce=name), "cpu", 2).reduction for name in NAMES}
    assert {name for name in NAMES if by_name[name] == NCCL} == {"nccl", "nccl_op"}


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 5}}',
            "not in its cluster",
        ),
        ('{"cluster": {"worker": ["a:2222"], "ps": ["b:2222"]}, "task": {"type": "worker"}}', "has ps tasks"),
        ("{", "TF_CONFIG cannot be read"),
    ],
)
def test_a_cluster_that_is_not_understood_never_becomes_a_strategy_of_one_host(
    monkeypatch: pytest.MonkeyPatch, config: str, what: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(UsageError, match=what):
        strategy()


WORKERS_LATE = """
import os, tensorflow as tf
import gputopo.launch
from gputopo.launch import user_strategy as door
from gputopo.values.machine import Driver, Machine
door.read_machine = lambda: Machine(source="live", driver=Driver(status="no_device"))
tf.constant(1.0)
os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 1}}'
for asked in ({"num_gpus": 2}, {}):
    try:
        gputopo.launch.strategy(**asked)
    except door.UsageError as error:
        print(error.what, "|", error.hint)
"""


@pytest.mark.tensorflow
def test_workers_are_not_joined_on_several_cpu_devices_or_where_tensorflow_has_made_its_devices() -> None:
    done = run_program("-c", WORKERS_LATE)
    assert done.returncode == 0, done.stderr
    several, late = done.stdout.splitlines()
    assert several.startswith("num_gpus=2 of several workers needs GPUs: No NVIDIA device | remove num_gpus")
    assert late.startswith("TensorFlow has already created its devices | call gputopo.launch.strategy")


FITS = """
import json, sys
import gputopo.launch
from gputopo.launch import user_strategy as door
from gputopo.values.machine import Driver, Machine
door.read_machine = lambda: Machine(source="live", driver=Driver(status="no_device"))
import numpy as np, keras, tensorflow as tf
def build():
    return keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
chosen = gputopo.launch.strategy(build, num_gpus=2)
keras.utils.set_random_seed(1)
x = np.random.rand(16, 4).astype("float32")
y = x.sum(1, keepdims=True)
with chosen.scope():
    model = build()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    weight = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
examples = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
losses = model.fit(examples, epochs=2, verbose=0).history["loss"]

@tf.function
def step(ones):
    chosen.run(lambda one: weight.assign_add(one), (ones,))
step(chosen.experimental_distribute_values_from_function(lambda context: tf.constant(1.0)))
print(json.dumps([type(chosen).__name__, chosen.num_replicas_in_sync, losses, float(weight.numpy())]))
"""


@pytest.mark.tensorflow
def test_keras_fits_and_a_loop_of_the_users_own_runs_in_its_scope() -> None:
    done = run_program("-c", FITS)
    assert done.returncode == 0, done.stderr
    name, replicas, losses, weight = json.loads(done.stdout)
    assert (replicas, weight) == (2, 2.0)
    assert name == "MirroredStrategy"
    assert losses[1] < losses[0]
    lines = [line for line in done.stderr.splitlines() if line.startswith("gputopo: ")]
    assert len(lines) == 4  # the choice, why, and what fails in Keras 3
    assert lines[:2] == [
        "gputopo: MirroredStrategy with reduction to one device on 2 logical CPU devices (No NVIDIA device).",
        "gputopo: why: no GPU to plan for: 2 logical CPU devices.",
    ]


LATE = """
import traceback, keras
import gputopo.launch
from gputopo.launch import user_strategy as door
from gputopo.values.machine import Driver, Machine
door.read_machine = lambda: Machine(source="live", driver=Driver(status="no_device"))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
try:
    gputopo.launch.strategy(model, num_gpus=2)
except door.UsageError:
    traceback.print_exc()
for asked in ({"num_gpus": 1}, {}):
    print(type(gputopo.launch.strategy(model, **asked)).__name__)
"""


@pytest.mark.tensorflow
def test_too_late_a_call_fails_with_what_and_what_to_do_unless_the_devices_are_those_of_the_plan() -> None:
    done = run_program("-c", LATE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "OneDeviceStrategy\n" * 2
    failure, said = done.stderr.split("gputopo: ", 1)
    _, *frames, what, hint = failure[failure.index("Traceback") :].splitlines()
    assert what == "gputopo.values.errors.UsageError: TensorFlow has already created its devices"
    assert hint.startswith("call gputopo.launch.strategy before anything that uses a device")
    assert sum(line.startswith("  File") for line in frames) == 2  # the script, and the function
    assert said.endswith("TensorFlow had already created its devices.\n")


STARTED = """
import os, sys, tensorflow as tf
from gputopo.launch import user_strategy as door
from gputopo.values.machine import TensorFlowInstall
from msgspec.structs import replace
from tests.launch.specs import machine
complete = TensorFlowInstall(is_cuda_build=True, missing_libraries=())
door.read_machine = lambda: replace(machine(), tensorflow=complete)
door.make_strategy = lambda target, model: print(*target.plan.choice.gpus, model.says)
tf.config.list_physical_devices()
del os.environ["CUDA_VISIBLE_DEVICES"]
os.environ["GPUTOPO_HOME"] = sys.argv[1]
for model in (lambda: tf.Variable(1.0), "resnet50"):
    door.strategy(model, num_gpus=2, claim=False)
"""


@pytest.mark.tensorflow
def test_a_model_is_not_built_by_a_fork_of_a_process_in_which_tensorflow_has_started(tmp_path: Path) -> None:
    done = run_program("-c", STARTED, str(tmp_path))
    assert done.returncode == 0, done.stderr
    says = "2 3 the costs of the model are not counted, since TensorFlow has started"
    assert done.stdout.splitlines() == [says, "2 3 None"]


ALONE = """
import json, signal, sys
from gputopo.launch import user_strategy as door
from gputopo.values.machine import TensorFlowInstall
from msgspec.structs import replace
from tests.launch.specs import machine
complete = TensorFlowInstall(is_cuda_build=True, missing_libraries=())
door.read_machine = lambda: replace(machine(), tensorflow=complete)
door.make_strategy = lambda target, model: print(*target.plan.choice.gpus, flush=True)
door.strategy(**json.loads(sys.argv[1]))
signal.pause()
"""


@contextmanager
def script(home: Path, visible: str | None = None, **asked: object) -> Iterator[str]:
    """Run a script that has called `strategy` until the end of the context; yield the GPUs that it got."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        words = ("-c", ALONE, json.dumps(asked))
        with commands.started(*words, out=None, GPUTOPO_HOME=str(home), **environ) as (program, printed):
            yield printed.readline().strip()
            program.kill()
            program.wait()


def test_alone_it_claims_its_gpus_until_its_process_ends_unless_it_shall_not(tmp_path: Path) -> None:
    with script(tmp_path, num_gpus=2, claim=False) as gpus, script(tmp_path, num_gpus=2) as same:
        assert (gpus, same) == ("2 3", "2 3")
        with script(tmp_path, num_gpus=2) as others:
            assert others == "0 1"
    with script(tmp_path, num_gpus=2) as again:
        assert again == "2 3"


def test_under_a_narrowed_environment_the_plan_is_of_the_visible_gpus_in_their_order(tmp_path: Path) -> None:
    with script(tmp_path, "GPU-33-aa,GPU-11-aa") as gpus:
        assert gpus == "3 1"
