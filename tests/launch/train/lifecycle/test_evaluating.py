"""What a run keeps and what is made of it: evaluation, forward passes, export, traces, scalars, accuracy."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gputopo.values.errors import ExitCode
from gputopo.values.run.events import (
    Evaluated,
    Exported,
    LossNotFinite,
    Noticed,
    PlacementChecked,
    Step,
    Traced,
    WarmupDone,
)
from tests.launch.forks import answer_of
from tests.launch.train.lifecycle.life import Fields, Ran, run_all
from tests.launch.train.trained import USER

pytestmark = pytest.mark.tensorflow

TOWERS, ROWS, STEPS = 2, 4, 6
RATE = 0.01  # so low that not every example is recognised
MAX_WARMUP = 1000  # steps of a warm-up that lasts for a time
SERVER: Fields = {"variable_update": "parameter_server", "ps_device": "/CPU:0"}


TOLERANCE = 1e-5  # float32 over sums of some tens of terms


def _run(name: str, num_batches: int = 1, **fields: object) -> Fields:
    base = {"batch_size": ROWS, "num_warmup_batches": 0, "learning_rate": 0.1, **SERVER}
    return {"name": name, **base, "num_batches": num_batches, **fields}


def runs_in(folder: Path) -> list[Fields]:
    """Return the runs, one after the other: the first keeps all there is to keep, what others read."""
    kept = {"checkpoints": str(folder / "kept")}
    export, trace, board, small = (str(folder / name) for name in ("export", "trace", "board", "small"))
    keras, bf16, warn = f"{USER}:normed", {"compute": "bf16"}, {"on_nan": "warn"}
    every = {**kept, "export": export, "trace": trace, "trace_steps": [2, 3, 5, 90], "tensorboard": board}
    (folder / "real").mkdir()
    (folder / "keras").symlink_to(folder / "real")
    return [
        _run("train", STEPS, lifecycle=every, learning_rate=RATE, optimization={"optimizer": "momentum"}),
        _run("eval", 3, variable_update="replicated", task="eval", lifecycle=kept),
        _run("forward", 3, task="forward", num_warmup_batches=1),
        _run("nan", 2, num_warmup_batches=3, min_warmup_s=0.05, learning_rate=1e30, optimization=warn),
        _run("board_full", 2, disk_bytes=0, lifecycle={"tensorboard": str(folder / "full")}),
        # Bytes: enough for the arrays.
        _run("export_full", model=keras, disk_bytes=3000, precision=bf16, lifecycle={"export": small}),
        _run("keras", 3, model=keras, lifecycle={"export": str(folder / "keras")}),
        _run("locked", lifecycle={"checkpoints": str(folder / "locked")}),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("life")


@pytest.fixture(scope="module")
def ran(folder: Path) -> dict[str, Ran]:
    (folder / "locked").mkdir()
    handle = os.open(folder / "locked", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return run_all(folder, TOWERS, runs_in(folder))
    finally:
        os.close(handle)


@pytest.fixture(scope="module")
def examples(ran: dict[str, Ran], folder: Path) -> tuple[Any, Any]:
    with np.load(folder / f"out{TOWERS}" / "joint_batch.npz") as joint:
        return joint["images"], joint["labels"]


def logits_by_hand(weights: list[Any], state: list[Any], images: Any) -> Any:
    """The network of normed_model in float64, as it is used: with the moving statistics, nothing dropped."""
    kernel, beta, gamma, dense, bias = (array.astype(np.float64) for array in weights)
    mean, variance = (array.astype(np.float64) for array in state)
    windows = np.lib.stride_tricks.sliding_window_view(images.astype(np.float64), (3, 3), axis=(1, 2))
    x = np.einsum("bhwcij,ijcf->bhwf", windows, kernel)
    x = (x - mean) / np.sqrt(variance + 0.001) * gamma + beta
    return np.maximum(x, 0.0).reshape(len(images), -1) @ dense + bias


def trained(run: Ran) -> tuple[list[Any], list[Any]]:
    return (
        [run.last[f"variables/0/{number}"] for number in range(5)],
        [run.last[f"state/0/{number}"] for number in range(2)],
    )


def metrics(logits: Any, labels: Any) -> tuple[float, float, float]:
    order = np.argsort(-logits, axis=1, kind="stable")
    place = np.argmax(order == labels[:, None], axis=1)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    loss = -log_p[np.arange(len(labels)), labels].mean()
    return float((place < 1).mean()), float((place < 5).mean()), float(loss)


def test_an_evaluation_agrees_with_numpy_on_the_trained_variables_and_moving_statistics(
    ran: dict[str, Ran], examples: tuple[Any, Any]
) -> None:
    images, labels = examples
    top1, top5, loss = metrics(logits_by_hand(*trained(ran["train"]), images), labels)
    (reported,) = ran["eval"].reported(Evaluated)
    assert reported.examples == 3 * TOWERS * ROWS
    assert (reported.top1, reported.top5) == (top1, top5)
    assert 0 < top1 < top5
    assert reported.loss == pytest.approx(loss, rel=TOLERANCE)
    assert reported.steps == STEPS
    assert len(ran["eval"].reported(Step)) == 3


def test_forward_passes_train_nothing_and_have_marks(ran: dict[str, Ran]) -> None:
    steps = ran["forward"].reported(Step)
    assert [step.step for step in steps] == [0, 1, 2, 3]
    assert len({step.loss for step in steps}) == 1
    for step in steps:
        assert all(mark.compute_s > 0 for mark in step.marks)
    (placed,) = ran["forward"].reported(PlacementChecked)
    assert set(placed.ops) == {"/CPU:0", "/CPU:1"}


def test_a_warm_up_lasts_for_its_steps_and_its_time(ran: dict[str, Ran]) -> None:
    (done,) = ran["nan"].reported(WarmupDone)
    assert 3 <= done.steps <= MAX_WARMUP
    steps = ran["nan"].reported(Step)
    assert done.steps == MAX_WARMUP or sum(step.seconds for step in steps[1:-2]) >= 0.05
    numbers = [step.step for step in steps]
    assert numbers[-2:] == [1, 2]
    assert all(number < 1 for number in numbers[:-2])
    assert len(numbers) == done.steps + 2


def test_a_loss_that_is_no_number_is_reported_once_and_training_goes_on_where_that_is_asked(
    ran: dict[str, Ran],
) -> None:
    (reported,) = ran["nan"].reported(LossNotFinite)
    assert reported.value in ("nan", "inf")
    assert reported.towers
    assert ran["nan"].reported(Step)[-1].loss is None


LOAD = """
import json, sys
import keras
for name in list(sys.modules):
    if name.split(".")[0] in ("gputopo", "tests"):
        sys.modules[name] = None  # from here on, it cannot be imported
import numpy as np
import tensorflow as tf
folder, images = sys.argv[1], np.load(sys.argv[2])["images"]
def served(name, images):
    serve = tf.saved_model.load(f"{folder}/{name}/saved_model").signatures["serving_default"]
    return {key: value.numpy().tolist() for key, value in serve(images=tf.constant(images)).items()}
model = keras.models.load_model(f"{folder}/keras/model.keras")
found = {name: served(name, images) for name in ("export", "keras")}
found["one"] = served("export", images[:1])
found["predicted"] = model.predict(images, verbose=0).tolist()
found["kernel"] = model.layers[0].kernel.numpy().tolist()
found["mean"] = model.layers[1].moving_mean.numpy().tolist()
found["registered"] = list(keras.saving.get_custom_objects())
found["board"] = {}
for path in tf.io.gfile.glob(folder + "/board/*/events*"):
    points = found["board"][path.split("/")[-2]] = {}
    for event in tf.compat.v1.train.summary_iterator(path):
        for value in event.summary.value:
            assert value.metadata.plugin_data.plugin_name == "scalars"
            points.setdefault(value.tag, []).append([event.step, float(tf.make_ndarray(value.tensor))])
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def loaded(ran: dict[str, Ran], folder: Path) -> dict[str, Any]:
    """The exported models and the scalars, in a process that cannot import gputopo."""
    joint = folder / f"out{TOWERS}" / "joint_batch.npz"
    found: dict[str, Any] = answer_of("-c", LOAD, str(folder), str(joint))
    assert found["registered"] == []
    return found


def test_the_exported_model_gives_the_same_logits_in_a_process_without_gputopo(
    ran: dict[str, Ran], loaded: dict[str, Any], examples: tuple[Any, Any]
) -> None:
    logits = logits_by_hand(*trained(ran["train"]), examples[0])
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for found, right in (
        (loaded["export"]["logits"], logits),
        (loaded["one"]["logits"], logits[:1]),
        (loaded["export"]["probabilities"], likely),
    ):
        np.testing.assert_allclose(found, right, rtol=0, atol=TOLERANCE * 10)


def test_a_trained_keras_model_is_loaded_by_keras_and_by_tensorflow_from_the_folder_of_a_link(
    ran: dict[str, Ran], loaded: dict[str, Any], folder: Path
) -> None:
    assert (folder / "keras").is_symlink()
    names = sorted(path.name for path in (folder / "real").iterdir())
    assert names == ["model.json", "model.keras", "saved_model", "weights.npz"]
    (reported,) = ran["keras"].reported(Exported)
    assert reported.formats == ("saved_model", "npz", "keras")
    assert ran["keras"].reported(Noticed) == []
    np.testing.assert_allclose(loaded["predicted"], loaded["keras"]["probabilities"], rtol=0, atol=1e-6)
    assert any(abs(value) > 1e-3 for value in loaded["mean"]), "the moving statistics were trained"
    np.testing.assert_array_equal(np.array(loaded["kernel"], np.float32), ran["keras"].last["variables/0/0"])
    with np.load(Path(reported.path) / "weights.npz") as arrays:
        np.testing.assert_array_equal(arrays[arrays.files[0]], ran["keras"].last["variables/0/0"])


def test_an_exported_keras_model_that_computes_in_a_short_type_is_reported(ran: dict[str, Ran]) -> None:
    (reported,) = (event.says for event in ran["export_full"].reported(Noticed))
    assert reported.startswith("The exported model's layers compute in bfloat16, as they did in training")


def test_the_exported_arrays_are_the_trained_ones_by_name(ran: dict[str, Ran], folder: Path) -> None:
    reported = json.loads((folder / "export" / "model.json").read_text())
    assert (reported["model"], reported["classes"], reported["steps"]) == ("norm", 7, STEPS)
    assert reported["input_shape"] == [6, 5, 2]
    weights, state = trained(ran["train"])
    with np.load(folder / "export" / "weights.npz") as arrays:
        assert list(reported["arrays"]) == arrays.files
        for array, name in zip([*weights, *state], arrays.files, strict=True):
            np.testing.assert_array_equal(arrays[name], array)
        assert reported["parameters"] == sum(array.size for array in weights)
    assert ran["train"].reported(Exported)[0].formats == ("saved_model", "npz")


def test_a_full_disk_is_called_so_and_leaves_nothing_half_written(ran: dict[str, Ran], folder: Path) -> None:
    board, export = ran["board_full"], ran["export_full"]
    assert (board.error or "").startswith(f"cannot write TensorBoard's scalars in {folder / 'full'}: ")
    assert (export.error or "").startswith(f"cannot write the exported model in {folder / 'small'}: ")
    assert "{{" not in (export.error or ""), "names of TensorFlow's graph mean nothing to a user"
    assert (board.exit_code, export.exit_code) == (ExitCode.HARDWARE, ExitCode.HARDWARE)
    assert list((folder / "small").iterdir()) == []


def test_a_folder_that_another_run_writes_to_is_refused(ran: dict[str, Ran], folder: Path) -> None:
    refused = ran["locked"]
    assert refused.error == f"another run is writing to {folder / 'locked'}"
    assert "--checkpoints" in (refused.hint or "")
    assert refused.exit_code == ExitCode.USAGE
    assert refused.reported(Step) == []


def test_chosen_steps_are_traced(ran: dict[str, Ran]) -> None:
    first, second = ran["train"].reported(Traced)
    assert (first.steps, second.steps) == ((2, 3), (5,))
    for reported in (first, second):
        assert list(Path(reported.path).rglob("*.xplane.pb"))
    said = [notice.says for notice in ran["train"].reported(Noticed)]
    assert said == ["Not traced, because the run ended before: step 90."]


def test_scalars_of_each_device_and_of_all_are_those_of_the_events(
    ran: dict[str, Ran], loaded: dict[str, Any]
) -> None:
    found = loaded["board"]
    assert set(found) == {"all", "tower_0", "tower_1"}
    steps = ran["train"].reported(Step)[1:]  # the first, whose time is compiling, is left out
    numbers = [step.global_step for step in steps]
    assert found["all"]["loss"] == [
        [number, pytest.approx(step.loss)] for number, step in zip(numbers, steps, strict=True)
    ]
    assert found["all"]["learning_rate"] == [[number, pytest.approx(RATE)] for number in numbers]
    assert found["tower_1"]["images_per_sec"] == [
        [step.global_step, pytest.approx(ROWS / (step.marks[1].weights_s + step.marks[1].compute_s))]
        for step in steps
    ]
