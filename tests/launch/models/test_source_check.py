"""Models whose code is not there, found in the source alone; what that cannot decide passes."""

from pathlib import Path

import pytest

from gputopo.launch.models import require_code
from gputopo.values.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def test_a_function_that_the_source_may_have_passes_and_nothing_of_it_runs(folder: Path) -> None:
    for source in (
        "def build(): raise SystemExit('ran')",
        "from other import *",
        "import sys\nsetattr(sys.modules[__name__], 'buil' + 'd', 1)",
    ):
        write(folder / "net_of_mine.py", source)
        require_code("net_of_mine:build")


def test_modules_whose_source_does_not_decide_pass() -> None:
    for name in ("os.path:nothing", "math:nothing", "alexnet"):
        require_code(name)


def test_a_function_that_is_not_there_is_refused_with_the_nearest(folder: Path) -> None:
    write(folder / "net_of_mine.py", "def build_net(): return build\n")
    with pytest.raises(UsageError, match="net_of_mine has no 'build_nett'") as refused:
        require_code("net_of_mine:build_nett")
    assert refused.value.hint == "did you mean net_of_mine:build_net?"


@pytest.mark.parametrize("has_init", [True, False])
def test_a_module_of_a_package_is_looked_for_and_its_submodules_are_attributes(
    folder: Path, has_init: bool
) -> None:
    write(folder / "nets_of_mine/small.py", "def build(): pass\n")
    if has_init:
        write(folder / "nets_of_mine/__init__.py", "")
    for name in ("nets_of_mine.small:build", "nets_of_mine:small.build"):
        require_code(name)
    for name, said in (
        ("nets_of_mine.large:build", "there is no module nets_of_mine.large in this folder"),
        ("nets_of_mine.small.part:build", "there is no module nets_of_mine.small.part"),
        ("nets_of_mine:large.build", "nets_of_mine has no 'large.build'"),
    ):
        with pytest.raises(UsageError, match=said):
            require_code(name)


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no module net_of_yours in this folder"):
        require_code("net_of_yours.part:build")


def test_a_model_that_keras_does_not_have_is_refused_with_the_nearest() -> None:
    for name in ("keras:ResNet50", "keras:resnet50", "keras:EfficientNetV2B0"):
        require_code(name)
    with pytest.raises(UsageError, match="has no model 'Resnet51'") as refused:
        require_code("keras:Resnet51")
    assert "keras:ResNet50" in refused.value.hint
