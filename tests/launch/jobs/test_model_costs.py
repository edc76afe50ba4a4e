"""Costs of models without a table: built in a child, stored by content. The children are tiny scripts."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.launch.jobs import model_costs
from gputopo.launch.jobs.model_costs import Sized, content_of, in_child, models_home, sized, workload_of
from gputopo.launch.spec.model_names import read
from gputopo.values.errors import UsageError
from gputopo.workload import Workload, require_workload

ALEXNET = require_workload("alexnet")


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow has not started here, whatever tests before these have loaded."""
    monkeypatch.setattr(model_costs, "of_tensorflow", lambda fact: False)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that are built, each as alexnet, in place of a child that loads Keras."""
    names: list[str] = []

    def build(name: str) -> Workload:
        names.append(name)
        return msgspec.structs.replace(ALEXNET, name=name)

    monkeypatch.setattr(model_costs, "_built", build)
    return names


def test_a_network_of_the_tables_needs_no_child(tmp_path: Path, built: list[str]) -> None:
    assert workload_of("resnet50", {"GPUTOPO_HOME": str(tmp_path)}) == require_workload("resnet50")
    assert built == []


def test_a_model_is_built_once_and_then_read_unless_the_file_is_damaged(
    tmp_path: Path, built: list[str]
) -> None:
    environ = {"GPUTOPO_HOME": str(tmp_path)}
    first = workload_of("keras:Small", environ)
    assert workload_of("keras:Small", environ) == first
    assert built == ["keras:Small"]
    (file,) = models_home(environ).iterdir()
    file.write_text("{")
    assert workload_of("keras:Small", environ) == first
    assert len(built) == 2


def test_costs_that_cannot_be_stored_are_used(tmp_path: Path, built: list[str]) -> None:
    (tmp_path / "home").write_text("a file")
    for _ in range(2):
        assert workload_of("keras:Small", {"GPUTOPO_HOME": str(tmp_path / "home")}).name == "keras:Small"
    assert len(built) == 2


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


def test_a_name_of_the_table_is_a_name_and_another_one_is_looked_up(tmp_path: Path, built: list[str]) -> None:
    assert sized("resnet50", {}) == Sized("resnet50")
    found = sized("keras:ResNet50", {"GPUTOPO_HOME": str(tmp_path)})
    assert (found.name, found.workload is not None, built) == ("keras:ResNet50", True, ["keras:ResNet50"])
    assert sized(None, {}) == Sized()


def test_a_number_of_parameters_is_planned_for_as_the_nearest_model_which_is_stated() -> None:
    found = sized(62_000_000, {})
    assert (found.name, found.workload) == ("alexnet", None)
    assert found.says == "62,000,000 parameters: planned as alexnet with 61,842,345"


def test_a_function_is_counted_by_building(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_costs, "in_child", lambda build: build())
    assert sized(lambda: ALEXNET, {}).workload == ALEXNET
    assert sized(lambda: 25_000_000, {}).name is not None


def test_what_is_no_model_is_refused() -> None:
    cases: list[tuple[Any, str]] = [
        (0, "not a number of parameters"),
        (True, "cannot be a bool"),
        (1.5, "cannot be a float"),
    ]
    for model, what in cases:
        with pytest.raises(UsageError, match=what):
            sized(model, {})


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
            in_child(build)
