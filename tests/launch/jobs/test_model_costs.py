"""Costs of models without a table: built in a child, stored by content. The builders pretend."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gputopo.launch import models
from gputopo.launch.jobs import Sized, sized, workload_of
from gputopo.values.errors import UsageError
from gputopo.workload import Workload, require_workload

ALEXNET = require_workload("alexnet")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow has not started here, whatever tests before these have loaded."""
    monkeypatch.delitem(sys.modules, "tensorflow.python.eager.context", raising=False)
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path))


class Built:
    """The models that children build, each as alexnet, in place of Keras."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def build(self, asked: Any, _: object) -> object:
        with self._file.open("a") as file:
            file.write(f"{asked.module}:{asked.attribute}\n")
        return asked

    def count(self, model: object, name: str) -> Workload:
        return msgspec.structs.replace(ALEXNET, name=name)

    @property
    def names(self) -> list[str]:
        return self._file.read_text().split() if self._file.exists() else []


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    built = Built(tmp_path / "built")
    monkeypatch.setitem(vars(models), "build_keras", built.build)
    monkeypatch.setitem(vars(models), "count_costs", built.count)
    return built


def test_a_model_is_built_once_and_then_read_unless_the_file_is_damaged(tmp_path: Path, built: Built) -> None:
    first = workload_of("keras:Small")
    assert workload_of("keras:Small") == first
    assert built.names == [":Small"]
    (file,) = (tmp_path / "models").iterdir()
    file.write_text("{")
    assert workload_of("keras:Small") == first
    assert len(built.names) == 2


def test_the_users_code_is_part_of_the_content(
    tmp_path: Path, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def build(): ...")
    package = tmp_path / "package"
    package.mkdir()
    (package / "layers.py").write_text("SIZE = 3")
    names = ["mine:build", "mine:other", "package.models:build"]
    for _ in range(2):
        for name in (*names, "keras:ResNet50"):
            workload_of(name)
    assert built.names == [*names, ":ResNet50"]
    (tmp_path / "mine.py").write_text("def build(): return 1")
    (package / "layers.py").write_text("SIZE = 4")
    for name in (*names, "keras:ResNet50"):
        workload_of(name)
    assert built.names[4:] == names


def test_a_name_of_the_table_is_a_name_and_another_one_is_looked_up(built: Built) -> None:
    assert sized("resnet50") == Sized("resnet50")
    found = sized("keras:ResNet50")
    assert (found.name, found.workload is not None, built.names) == ("keras:ResNet50", True, [":ResNet50"])
    assert sized(None) == Sized()


def test_a_number_of_parameters_is_planned_for_as_the_nearest_model_which_is_stated() -> None:
    found = sized(62_000_000)
    assert (found.name, found.workload) == ("alexnet", None)
    assert found.says == "62,000,000 parameters: planned as alexnet with 61,842,345"


def test_a_function_is_counted_by_building(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [SimpleNamespace(shape=(31_000_000,)), SimpleNamespace(shape=(2, 15_500_000))]
    monkeypatch.setitem(vars(models), "KerasModel", lambda model, name: model)
    found = sized(lambda: SimpleNamespace(trainable_weights=weights))
    assert found.workload == msgspec.structs.replace(ALEXNET, name=str(found.name))

    def refuse(model: object, name: str) -> None:
        raise UsageError("its steps cannot be traced", "x")

    monkeypatch.setitem(vars(models), "KerasModel", refuse)
    assert sized(lambda: SimpleNamespace(trainable_weights=weights)).name == "alexnet", "by its parameters"


def test_what_is_no_model_is_refused() -> None:
    cases: list[tuple[Any, str]] = [(0, "not a number of parameters"), (True, "cannot be a bool")]
    for model, what in cases:
        with pytest.raises(UsageError, match=what):
            sized(model)


def test_a_function_that_fails_or_returns_no_model_or_ends_is_refused_with_its_reason() -> None:
    def raises() -> None:
        raise KeyError(os.environ["CUDA_VISIBLE_DEVICES"])

    def refuses() -> None:
        raise UsageError("not this one", "another")

    for build, what in (
        (raises, "KeyError: '-1'"),  # no GPU is visible to the child
        (lambda: 7, "returns a int, not a Keras model"),
        (lambda: os._exit(3), "its process ended with 3"),
        (refuses, "not this one"),
    ):
        with pytest.raises(UsageError, match=what):
            sized(build)
