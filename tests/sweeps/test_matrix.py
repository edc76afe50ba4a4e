"""A matrix's file: what it may hold, and what is said of mistakes."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.sweeps import PRESETS, Matrix, matrix_source, parse_matrix
from gputopo.values.errors import GputopoError, InputError, UsageError
from gputopo.values.option import Declared, Option, options_of
from gputopo.values.run.options import SweepOptions
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.spec import RunSpec

UNFIT = {"checkpoints": "all cells would write to it", "cpu": "", "repeats": ""}
OPTIONS = {"model": Declared(Option("--model", "Model", value="NAME"), "model", str, None)} | {
    one.name.rstrip("_"): one
    for one in (*options_of(PlanOptions), *options_of(RunSpec))
    if one.name.rstrip("_") not in UNFIT
}
MODEL = '[matrix]\nmodel = "alexnet"\n'


def matrix(text: str) -> Matrix:
    return parse_matrix(text, OPTIONS, origin="m.toml", unfit=UNFIT)


def refused(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        matrix(text)
    return f"{caught.value.what}; {caught.value.hint}"


def test_values_lists_and_switches_are_read() -> None:
    found = matrix(
        'title = "T"\nrepeats = 2\n[options]\nnum-batches = 10\n[[matrix]]\nmodel = ["alexnet", "vgg16"]\n'
        "gpus = [[0, 1], [2, 3]]\nxla = [false, true]\nrepeats = 3\n[[matrix]]\nmodel = 'resnet50'\n"
        "[[set]]\nwhen = {backend = 'cpu'}\nbatch_size = 4\nreason = 'slow'\n[[exclude]]\nmodel = 'vgg16'\n"
    )
    first, second = found.tables
    assert first.axes == {
        "model": ("alexnet", "vgg16"),
        "gpus": ((0, 1), (2, 3)),
        "xla": (False, True),
    }
    assert (first.repeats, second.repeats, found.repeats, found.options) == (3, None, 2, {"num_batches": 10})
    assert found.sets[0].sets == {"batch_size": 4}
    assert found.exclude[0].match == {"model": ("vgg16",)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no [matrix]"),
        ('[matrix]\nmodle = "alexnet"\n', "there is no key 'modle'; did you mean model?"),
        ("repeat = 2\n" + MODEL, "did you mean repeats?"),
        (MODEL + "batch_size = 0\n", "--batch-size"),
        (MODEL + "variable_update = 'replicatd'\n", "did you mean replicated?"),
        (
            MODEL + "checkpoints = 'x'\n",
            "checkpoints is not an option of a cell: all cells would write to it",
        ),
        (MODEL + "batch_size = {a = 1}\n", "--batch-size cannot be '{'a': 1}'"),
        ("repeats = 0\n" + MODEL, "Expected `int` >= 1 - at `$.repeats`"),
        ("order = 'sorted'\n" + MODEL, "Invalid enum value 'sorted' - at `$.order`"),
        ("[[set]]\nwhen = {model = 'alexnet'}\n" + MODEL, "a [[set]] sets nothing"),
        ("[[exclude]]\nmodell = 'alexnet'\n" + MODEL, "did you mean model?"),
        (MODEL + "asked = 'everything'\n", "Invalid enum value 'everything' - at `$.tables[0].asked`"),
    ],
)
def test_a_mistake_names_the_file_and_what_to_do(text: str, says: str) -> None:
    assert says in refused(text)
    assert refused(text).startswith("m.toml: ")


@pytest.mark.parametrize("text", ["[matrix", "a = 1\na = 2", "x"])
def test_what_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"m\.toml is"):
        matrix(text)


@given(st.text(max_size=200) | st.builds(MODEL.__add__, st.text(max_size=60)))
def test_any_text_is_a_matrix_or_an_error_that_can_be_acted_on(text: str) -> None:
    with contextlib.suppress(GputopoError):
        assert matrix(text).tables


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_a_matrix(name: str) -> None:
    assert matrix(matrix_source(SweepOptions(preset=name))[1]).tables


def test_an_unknown_preset_has_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        matrix_source(SweepOptions(preset="tensorpac"))
    assert "did you mean tensorpack?" in caught.value.hint


def test_a_file_that_cannot_be_read_as_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    for content, says in ((b"x" * (2 << 20), "too large"), (b"\xff", "not UTF-8"), (None, "cannot read")):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InputError, match=says):
            matrix_source(SweepOptions(matrix=file))
    file.write_text(MODEL)
    assert matrix_source(SweepOptions(matrix=file)) == ("m.toml", MODEL)
