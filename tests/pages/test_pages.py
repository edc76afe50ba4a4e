"""Reference pages: generated ones follow from the code, and every topic leads to an explanation."""

import re
from pathlib import Path

from gputopo import pages
from gputopo.cli import COMMANDS, options_of_command
from gputopo.values.run import all_reduce
from gputopo.workload import workload_names
from tests.pages import generate

FOLDER = Path(pages.__file__).parent


def test_a_generated_page_matches_the_code() -> None:
    for name in generate.GENERATED:
        assert pages.read(name) == generate.GENERATED[name](), "run python -m tests.pages.generate"


def test_every_page_of_the_folder_is_in_the_list_and_has_a_title() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(pages.PAGES)
    for name in pages.PAGES:
        assert re.fullmatch(rf"{name}: \w.+", pages.title(name))


def test_a_section_ends_at_the_next_heading_of_its_level() -> None:
    found = pages.explain("--watch")
    assert found is not None
    assert found.startswith("## --watch\n")
    assert "## --diff" not in found


def test_a_row_comes_with_the_header_of_its_table() -> None:
    assert (pages.explain("PIX") or "").splitlines()[0] == "| path | between two GPUs |"


def test_an_unknown_topic_has_no_explanation() -> None:
    assert pages.explain("pcie.no_such_finding") is None


def test_every_topic_is_explained() -> None:
    topics = set(pages.topics())
    assert [topic for topic in topics if not pages.explain(topic)] == []
    options = {one.option.flag for command in COMMANDS for one in options_of_command(command)}
    written = {*workload_names(), *all_reduce.NAMES, *(flag for flag in options if flag.startswith("--"))}
    assert written - topics == set()


def _anchor(heading: str) -> str:
    """Return the fragment by which a link leads to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_link_of_a_page_leads_to_a_page_and_a_heading() -> None:
    for name in pages.PAGES:
        for page, anchor in re.findall(r"\]\((\w+)\.md(?:#([^)]+))?\)", pages.read(name)):
            headings = re.findall(r"^#+ (.+)$", pages.read(page), re.MULTILINE)
            assert not anchor or anchor in map(_anchor, headings), f"{name}: {page}.md#{anchor}"


def test_every_option_of_a_command_on_a_page_is_an_option_of_that_command() -> None:
    for name in pages.PAGES:
        code = "".join(re.findall(r"^```\n(.*?)^```", pages.read(name), re.MULTILINE | re.DOTALL))
        for command, words in re.findall(r'^(?:\$ )?gputopo ([\w-]+) ([^\n"]*)', code, re.MULTILINE):
            known = {one.option.flag for one in options_of_command(command)} | set(generate.short_forms())
            typed = re.findall(r"(?<!\S)--[a-z][\w-]*", words.partition(" -- ")[0])
            assert set(typed) <= known, f"{name}: gputopo {command} {words}"
