"""Costs of models without a table: built in a child, stored by content. The children are tiny scripts."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch.jobs.model_costs import Sized, content_of, in_child, models_home, sized, workload_of
from gputopo.launch.spec.model_names import read
from gputopo.values.errors import InputError, UsageError
from gputopo.workload import workloads

COSTS = """
{"schema": "gputopo.model_costs/1", "workload": {"name": "keras:Small", "data_name": "own",
 "input_shape": [8, 8, 3], "classes": 10, "parameters": 30, "state": 0, "gpu_batch": 32, "cpu_batch": 4,
 "learning_rate": 0.005,
 "blocks": [{"name": "dense", "variables": [20, 10], "multiply_accumulates": 20, "features": 10}]}}
"""
REFUSED = """
{"schema": "gputopo.model_costs/1", "refused": {"what": "keras.applications has no model 'Smal'",
 "hint": "did you mean keras:Small?"}}
"""


class Child:
    """A child that writes a text, or runs other code, and how often it was started."""

    def __init__(self, text: str = COSTS, code: str = "open(sys.argv[1], 'w').write(sys.argv[2])") -> None:
        self.text, self.code, self.started = text, code, 0

    def __call__(self, name: str, answer: Path) -> Sequence[str]:
        self.started += 1
        return (sys.executable, "-c", f"import os, sys; {self.code}", str(answer), self.text)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"GPUTOPO_HOME": str(tmp_path / "home")}


def test_a_network_of_the_tables_needs_no_child(environ: dict[str, str]) -> None:
    child = Child()
    assert workload_of("resnet50", environ, command=child) == workloads.require("resnet50")
    assert child.started == 0


def test_a_model_is_built_once_and_then_read(environ: dict[str, str]) -> None:
    child = Child()
    first = workload_of("keras:Small", environ, command=child)
    assert first.blocks[0].variables == (20, 10)
    assert workload_of("keras:Small", environ, command=child) == first
    assert child.started == 1
    assert [file.suffix for file in models_home(environ).iterdir()] == [".json"]


def test_a_damaged_file_is_built_anew(environ: dict[str, str]) -> None:
    child = Child()
    workload_of("keras:Small", environ, command=child)
    for file in models_home(environ).iterdir():
        file.write_text("{")
    assert workload_of("keras:Small", environ, command=child).parameters == 30
    assert child.started == 2


def test_costs_that_cannot_be_stored_are_used(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    child = Child()
    for _ in range(2):
        environ = {"GPUTOPO_HOME": str(tmp_path / "home")}
        assert workload_of("keras:Small", environ, command=child).parameters == 30
    assert child.started == 2


def test_why_a_model_cannot_be_built_is_reported_and_not_stored(environ: dict[str, str]) -> None:
    child = Child(REFUSED)
    for _ in range(2):
        with pytest.raises(UsageError, match="has no model 'Smal'") as raised:
            workload_of("keras:Smal", environ, command=child)
        assert raised.value.hint == "did you mean keras:Small?"
    assert child.started == 2


def test_a_child_that_fails_is_reported_by_its_last_words(environ: dict[str, str]) -> None:
    child = Child(code="import nothing_of_that_name")
    with pytest.raises(InputError, match="cannot be built here: ModuleNotFoundError: No module named"):
        workload_of("keras:Small", environ, command=child)
    with pytest.raises(InputError, match="cannot be built here: exit code 7"):
        workload_of("keras:Small", environ, command=Child(code="sys.exit(7)"))


def test_the_child_sees_no_gpu(environ: dict[str, str]) -> None:
    child = Child(code="print(os.environ['CUDA_VISIBLE_DEVICES'])")
    with pytest.raises(InputError, match="cannot be built here: -1"):
        workload_of("keras:Small", {**environ, "CUDA_VISIBLE_DEVICES": "0"}, command=child)


def test_the_users_code_is_part_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def build(): ...")
    package = tmp_path / "package"
    package.mkdir()
    (package / "layers.py").write_text("SIZE = 3")
    before = [content_of(read(name)) for name in ("mine:build", "package.models:build", "keras:ResNet50")]
    assert len({*before, content_of(read("mine:other"))}) == 4
    (tmp_path / "mine.py").write_text("def build(): return 1")
    (package / "layers.py").write_text("SIZE = 4")
    after = [content_of(read(name)) for name in ("mine:build", "package.models:build", "keras:ResNet50")]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False, True]


ALEXNET = workloads.require("alexnet")


def test_a_name_of_the_table_is_a_name_and_another_one_is_looked_up() -> None:
    assert sized("resnet50", {}) == Sized("resnet50")
    assert sized("keras:ResNet50", {}, by_name=lambda name, _: ALEXNET) == Sized("keras:ResNet50", ALEXNET)
    assert sized(None, {}) == Sized()


def test_a_number_of_parameters_is_planned_for_as_the_nearest_model_which_is_stated() -> None:
    found = sized(62_000_000, {})
    assert (found.name, found.workload) == ("alexnet", None)
    assert found.says == "62,000,000 parameters are planned for as alexnet with 61,842,345"


def test_a_function_is_counted_by_building() -> None:
    assert sized(lambda: None, {}, by_building=lambda build: ALEXNET).workload == ALEXNET
    assert sized(lambda: None, {}, by_building=lambda build: 25_000_000).name is not None


@pytest.mark.parametrize(
    ("model", "what"),
    [(0, "no number of parameters"), (True, "cannot be a bool"), (1.5, "cannot be a float")],
)
def test_what_is_no_model_is_refused(model: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        sized(model, {})


def test_a_function_that_fails_or_returns_no_model_or_ends_is_refused_with_its_reason() -> None:
    def raises() -> None:
        raise KeyError("weights")

    def ends() -> None:
        import os

        os._exit(3)

    for build, what in (
        (raises, "KeyError: 'weights'"),
        (lambda: 7, "returns a int, no Keras model"),
        (ends, "its process ended with 3"),
    ):
        with pytest.raises(UsageError, match=what):
            in_child(build)
