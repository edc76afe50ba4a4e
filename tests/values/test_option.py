from typing import Annotated, Literal

import msgspec
import pytest

from gputopo.values.errors import UsageError
from gputopo.values.option import (
    MAX_INT,
    Given,
    Option,
    OptionsOf,
    Text,
    arguments_for,
    given_of,
    nearest,
    number_in,
    options_of,
    parameters_of,
    shown,
)

MODELS = ("lenet", "overfeat", "googlenet", "resnet50", "resnet101", "resnet20", "resnet56", "Dgx1")


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("resnet", ("resnet50", "resnet101", "resnet20")),  # what begins so, in the order of the list
        ("resnet51", ("resnet50", "resnet56", "resnet101")),  # of equally near ones the first of the list
        ("dgx", ("Dgx1",)),
        ("gogglenet", ("googlenet",)),
        ("mobilenet", ()),
    ],
)
def test_only_near_names_are_suggested(word: str, names: tuple[str, ...]) -> None:
    assert nearest(word, MODELS) == names


def test_what_was_typed_is_shown_on_one_line_and_not_without_end() -> None:
    assert shown("a\nb\x1b[31m") == r"'a\nb\x1b[31m'"
    assert len(shown("x" * 5000)) <= 60


class Part(msgspec.Struct, frozen=True):
    momentum: Annotated[
        float, Option("--momentum", "Momentum coefficient", theme="Optimizer", min=0, below=1)
    ] = 0.9
    epsilon: Annotated[float, Option("--epsilon", "Epsilon", above=0)] = 1.0
    plain: int = 0


class Spec(msgspec.Struct, frozen=True):
    shape: Annotated[
        Literal["table", "json"],
        Option("--format", "Output format"),
        Option("--json", "Same as --format json", words={"": {"shape": "json"}}),
    ] = "table"
    count: Annotated[int | None, Option("--count", "Count", default="by model", min=1)] = None
    asynchronous: Annotated[bool, Option("--async", "Do not wait")] = False
    words: Annotated[tuple[str, ...], Option("--word", "A word", value="WORD", repeated=True)] = ()
    part: Part = Part()


class Pause(msgspec.Struct, frozen=True):
    pause: Annotated[float, Option("--pause", "Pause", unit="s", above=0)] = 1.0


def command(
    name: Annotated[str, Option("NAME", "The name")],
    given: Annotated[Given, OptionsOf(Spec)],
    side: Annotated[int, Option("--side", "Pixels", min=8, max=16)] = 8,
) -> None:
    """Do something."""


def test_a_field_declares_the_whole_option() -> None:
    momentum = next(one for one in options_of(Spec) if one.name == "momentum")
    assert (momentum.placeholder, momentum.help) == ("X", "Momentum coefficient. Default: 0.9.")
    assert (momentum.option.theme, momentum.part, momentum.field) == ("Optimizer", ("part",), "momentum")
    assert [one.name for one in options_of(Spec)] == [
        "format", "json", "count", "async_", "word", "momentum", "epsilon"
    ]  # fmt: skip
    assert [one.help for one in options_of(Spec)][:3] == [
        "Output format. Default: table.",
        "Same as --format json.",
        "Count. Default: by model.",
    ]
    assert next(one for one in options_of(Spec)).placeholder == "table|json"


def test_what_was_typed_comes_to_its_field_and_nothing_else_does() -> None:
    typed: dict[str, Text] = {
        "json": True,
        "count": "3",
        "async_": True,
        "momentum": "0.5",
        "word": ["a", "b"],
    }
    given = given_of(Spec, typed)
    assert given.fields == {
        "shape": "json", "count": 3, "asynchronous": True, "words": ("a", "b"), "part": Part(momentum=0.5)
    }  # fmt: skip
    assert given.typed == {
        "json": True, "count": 3, "async": True, "momentum": 0.5, "word": ["a", "b"]
    }  # fmt: skip
    assert given_of(Spec, {}) == Given()


def test_a_command_gets_its_own_arguments_and_the_options_of_its_spec() -> None:
    found = arguments_for(command, {"name": "x", "count": "2"})
    assert found == {"name": "x", "given": Given({"count": 2}, {"count": 2})}
    assert [one.name for one in parameters_of(command)][-1] == "side"
    with pytest.raises(UsageError, match="NAME is missing"):
        arguments_for(command, {})


def test_a_value_that_cannot_be_is_refused_with_those_that_can() -> None:
    cases: list[tuple[str, str, str]] = [
        ("count", "0", "1 or more"),
        ("count", str(MAX_INT + 1), f"{MAX_INT} at most"),
        ("count", "1" * 5000, "--count N"),
        ("momentum", "1", "from 0, below 1"),
        ("momentum", "nan", "from 0, below 1"),
        ("epsilon", "0", "above 0"),
        ("epsilon", "inf", "above 0"),
        ("format", "jsn", "did you mean json"),
        ("format", "yaml", "table or json"),
    ]
    for name, text, hint in cases:
        with pytest.raises(UsageError, match=f"--{name} cannot be") as refused:
            given_of(Spec, {name: text})
        assert hint in refused.value.hint


def test_a_number_may_have_a_unit() -> None:
    cases: list[tuple[str, str, float]] = [
        *(("s", "90", 90), ("s", "90s", 90), ("s", "5m", 300), ("s", "1.5 h", 5400), ("s", "250ms", 0.25)),
        *(("min", "90s", 1.5), ("min", "10", 10), ("min", "2h", 120)),
        *(("bytes", "64KiB", 2**16), ("bytes", "1GB", 2**30), ("bytes", "512", 512), ("MiB", "2g", 2048)),
    ]
    for unit, text, number in cases:
        assert number_in(unit, text) == number


def test_a_wrong_unit_is_refused_with_those_that_are_meant() -> None:
    with pytest.raises(UsageError, match="--pause cannot be 5x") as refused:
        given_of(Pause, {"pause": "5x"})
    assert refused.value.hint == "give a time such as 90s, 5m or 2h, above 0 s"
    assert given_of(Pause, {"pause": "5m"}) == Given({"pause": 300.0}, {"pause": 300.0})


class Worded(msgspec.Struct, frozen=True):
    steps: Annotated[int, Option("--steps", "Steps", min=0, words={"auto": {"detect": True}})] = 10
    detect: bool = False
    tuned: Annotated[
        int, Option("--tuned", "Candidates", value="[K]", words={"": {"tuned": 3}}, min=2, max=9)
    ] = 0


def test_a_word_sets_its_fields_and_a_value_in_brackets_may_be_left_out() -> None:
    found = given_of(Worded, {"steps": "AUTO", "tuned": ""})
    assert found == Given({"detect": True, "tuned": 3}, {"steps": "auto", "tuned": True})
    assert given_of(Worded, {"steps": "4", "tuned": "2"}).fields == {"steps": 4, "tuned": 2}
    with pytest.raises(UsageError, match="--tuned cannot be 1"):
        given_of(Worded, {"tuned": "1"})
