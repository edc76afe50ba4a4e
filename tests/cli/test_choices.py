import pytest

from gputopo.cli.choices import listed, nearest, require_choice, shape_of, shown
from gputopo.values.errors import UsageError


def test_nearest_ignores_case_and_gives_nothing_for_something_else() -> None:
    assert nearest("JSN", ("table", "json")) == ("json",)
    assert nearest("xyz", ("table", "json")) == ()


def test_a_choice_is_given_back_and_another_value_names_all_choices() -> None:
    assert require_choice("--format", "json", ("table", "json")) == "json"
    with pytest.raises(UsageError) as caught:
        require_choice("--format", "xml", ("table", "json"))
    assert (caught.value.what, caught.value.hint) == ("--format cannot be 'xml'", "it takes table or json")


@pytest.mark.parametrize(
    ("words", "text"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_words_are_listed_as_a_person_does(words: list[str], text: str) -> None:
    assert listed(words) == text


def test_what_was_typed_is_shown_on_one_line_and_not_without_end() -> None:
    assert shown("a\nb\x1b[31m") == r"'a\nb\x1b[31m'"
    assert len(shown("x" * 5000)) <= 60


@pytest.mark.parametrize("asked", ["table", "env"])
def test_json_beside_another_format_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match=f"--json and --format {asked} contradict one another"):
        shape_of(asked, ("table", "json", "env"), json=True)


def test_json_is_short_for_its_format_and_a_table_is_what_is_left() -> None:
    formats = ("table", "json", "env")
    found = [shape_of(asked, formats, json=False) for asked in (None, "json", "env")]
    assert found == ["table", "json", "env"]
    assert [shape_of(asked, formats, json=True) for asked in (None, "json")] == ["json", "json"]
