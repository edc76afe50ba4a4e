"""What a user's module path leads to. Modules are written for each test; no model is built."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gputopo.values.run.events import ModelBuilt
from tests.kit.forks import ROOT
from tests.launch.forks import run_program
from tests.launch.train.trained import trained
from tests.launch.train.worker_process import run_worker, trivial_spec

pytestmark = pytest.mark.tensorflow

ENTER = "import os, sys; os.chdir(sys.argv[1]); sys.path[:0] = sys.argv.pop().split(':')"
REMOVE = "os.rmdir(sys.argv[1])"
ASK = """
from gputopo.values.errors import UsageError
from gputopo.launch.spec import model_names
from gputopo.launch.models.keras_sources import own_model
for name in sys.argv[2:]:
    try:
        own_model(model_names.read(name), 1)
    except UsageError as error:
        print(f"{error.what} | {error.hint}")
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("modules")
    for name, text in {
        "broken.py": "def build(:",
        "binary.py": "\udcff",
        "stops.py": "raise SystemExit(4)",
        "random.py": "def build(): pass",
        "holder.py": "class Maker:\n    def build(self): pass\n",
        "graphs.py": "import tensorflow as tf\ntf.compat.v1.disable_v2_behavior()\nbuild = 1",
    }.items():
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    names = [
        "broken:build",
        "binary:build",
        "stops:build",
        "random:build",
        "holder:Maker.build",
        "nowhere:build",
        "graphs:build",  # the last one: it changes TensorFlow for whatever follows
    ]
    return ask(names, ENTER, ASK, folder=folder)


def ask(names: list[str], *programs: str, folder: Path, path: Sequence[Path] = ()) -> dict[str, str]:
    """Return the message for each name, of programs run in a row with `path` first in `sys.path`."""
    first = ":".join(map(str, [ROOT, *path]))
    done = run_program("-c", "\n".join(programs), str(folder), *names, first)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(names, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken:build", ["cannot be imported: SyntaxError", "broken.py, line 1)", "python -c"]),
        ("binary:build", ["cannot be imported: SyntaxError", "utf-8", "python -c"]),
        ("stops:build", ["cannot be imported: SystemExit: 4", "python -c"]),
        ("random:build", ["random has no 'build'", "Python has another module 'random'", "rename random.py"]),
        ("holder:Maker.build", ["missing a required argument: 'self'", "needs none"]),
        ("nowhere:build", ["there is no module nowhere", "PYTHONPATH"]),
        ("graphs:build", ["graphs switches off TensorFlow's eager execution", "disable_v2_behavior()"]),
    ],
)
def test_a_module_that_does_not_do_is_reported_with_what_to_do(
    reported: dict[str, str], name: str, words: list[str]
) -> None:
    for word in words:
        assert word in reported[name]


def test_in_a_folder_that_was_removed_the_modules_of_pythonpath_are_found(tmp_path: Path) -> None:
    folder, path = tmp_path / "gone", tmp_path / "path"
    folder.mkdir()
    path.mkdir()
    (path / "holder.py").write_text("NUMBER = 5")
    names = ["holder:NUMBER", "holder:build", "nowhere:build"]
    reported = ask(names, ENTER, REMOVE, ASK, folder=folder, path=[path])
    assert "holder:NUMBER is a int, no function" in reported["holder:NUMBER"]
    assert "holder has no 'build'" in reported["holder:build"]
    assert "there is no module nowhere" in reported["nowhere:build"]


LISTED = """
from gputopo.launch.models import source_check
from gputopo.launch.models.keras_sources import applications
print(sorted(source_check._applications()) == sorted(one.__name__ for one in applications().values()))
"""


def test_the_models_of_keras_are_those_that_its_source_lists() -> None:
    done = run_program("-c", LISTED)
    assert done.stdout == "True\n", done.stderr[-2000:]


pytestmark = pytest.mark.tensorflow

MODULE = "tests.launch.models.odd_models"
BAD = {
    "odd_layer": ("'my dense:0' is not a valid root scope name", "rename that layer"),
    "odd_inner_model": ("'a b-ü' is not a valid root scope name", "rename that layer or model"),
    "needs_batch, to be exported": (
        "needs_batch' does not take a batch of any size, as --export needs it to: ValueError: ",
        "keras.ops.shape(x)[0] in place of x.shape[0]",
    ),
    # The last one: it is switched off for whatever follows in the process.
    "as_in_tensorflow_1": ("switches off TensorFlow's eager execution", "disable_eager_execution()"),
}
GOOD = ["needs_batch", "plain, to be exported"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("odd")
    return trained(folder, 1, {name: case(name, folder) for name in (*GOOD, *BAD)})


def case(name: str, folder: Path) -> dict[str, Any]:
    function, _, exported = name.partition(", ")
    lifecycle = {"lifecycle": {"export": str(folder / "export")}} if exported else {}
    return {"model": f"{MODULE}:{function}", "ps_device": "/CPU:0", **lifecycle}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_reported_with_its_cause_and_what_to_do(found: dict[str, Any], name: str) -> None:
    what, hint = BAD[name]
    assert what in found[name]["error"]
    assert hint in found[name]["hint"]
    assert found[name]["exit"] == 2


@pytest.mark.parametrize("name", GOOD)
def test_only_an_export_asks_for_batches_of_any_size(found: dict[str, Any], name: str) -> None:
    assert "error" not in found[name], found[name]
    assert np.isfinite(found[name]["losses"]).all()


pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(("model", "reported"), [("metered", ["seen"]), ("yes_or_no", [])])
def test_metrics_of_layers_are_named_and_those_of_compile_are_not_among_them(
    tmp_path: Path, model: str, reported: list[str]
) -> None:
    spec = trivial_spec(model=f"tests.launch.train.user_models:{model}", batch_size=4)
    code, events, stderr = run_worker(tmp_path, spec)
    assert code == 0, stderr[-2000:]
    (built,) = (event for event in events if isinstance(event, ModelBuilt))
    said = [one for one in built.says if "metrics" in one]
    assert said == [
        f"The model's layers have metrics ({name}), which a run does not update or show." for name in reported
    ]
