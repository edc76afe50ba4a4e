"""Reference pages: generated ones follow from the code, and every topic leads to an explanation."""

import re
from pathlib import Path

from gputopo import pages
from gputopo.values.run import all_reduce
from gputopo.workload import workloads
from tests.pages import generate

FOLDER = Path(pages.__file__).parent


def test_a_generated_page_matches_the_code() -> None:
    for name in generate.GENERATED:
        assert pages.read(name) == generate.GENERATED[name](), "run python -m tests.pages.generate"


def test_every_page_of_the_folder_is_in_the_list_and_has_a_title() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(pages.PAGES)
    for name in pages.PAGES:
        assert re.fullmatch(rf"{name}: \w.+", pages.title(name))


def test_every_model_and_reduction_is_explained() -> None:
    for name in (*workloads.names(), *all_reduce.NAMES):
        assert f"`{name}`" in (pages.explain(name) or "")


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
    assert [topic for topic in pages.topics() if not pages.explain(topic)] == []
