"""A document as one HTML file: complete without network and script; nothing in it is markup of a log."""

import base64
import hashlib
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo import captures
from gputopo.report import Document, document_html
from gputopo.report.document import Bullets, Picture, Section, Table
from gputopo.report.pictures import ChartPoint, ChartSeries, scaling_picture, topology_picture
from tests import there

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = '<script>document.title="owned"</script>"\'&<img src=x onerror=alert(1)>'


def small(text: str) -> Document:
    """A document with one text at every place that a log can fill."""
    table = Table.of((text, "b"), ((text, text),), words=(text, "b"), notes=(text,))
    picture = Picture("p", text, text, "<svg></svg>")
    return Document(text, text, (Section(text, (text, Bullets((text,)), table, picture)),))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    """All start tags with their attributes."""
    parser = _Tags()
    parser.feed(html)
    return parser.found


@given(st.text(max_size=40) | st.just(HOSTILE))
def test_a_text_adds_no_tag_and_no_attribute_wherever_it_stands(text: str) -> None:
    def shape(html: str) -> list[tuple[str, list[str]]]:
        return [(tag, sorted(attributes)) for tag, attributes in tags(html)]

    assert shape(document_html(small(text))) == shape(document_html(small("plain")))


def test_nothing_is_loaded_from_elsewhere_and_the_only_script_is_the_one_that_is_allowed() -> None:
    html = document_html(whole())
    assert not [tag for tag, _ in tags(html) if tag in ("link", "iframe", "img")]
    assert [attributes for tag, attributes in tags(html) if tag == "script"] == [{}]
    script = html.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    references = [value for _, attributes in tags(html) for name, value in attributes.items()
                  if name in ("src", "href", "xlink:href")]  # fmt: skip
    assert references
    assert all(value is not None and value.startswith("#") for value in references)
    assert "url(http" not in html
    assert "@import" not in html


def test_numbers_in_a_column_are_padded_to_the_same_digits() -> None:
    table = Table.of(("GPU", "x"), (("a", "1.5"), ("b", "12  "), ("c", "1.  ")), words=("GPU",))
    html = document_html(Document("", "", (Section("S", (table,)),)))
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", html)
    space = "\N{FIGURE SPACE}"
    assert cells == ["1.5", f"12\N{PUNCTUATION SPACE}{space}", f"1.{2 * space}"]


def whole() -> Document:
    """A document with every kind of block, of a bundled machine."""
    machine = captures.load(["7gforce"])
    topology = topology_picture(machine)
    points = tuple(ChartPoint(count, count**0.9, count**0.88, count**0.92) for count in (1, 2, 4))
    speedup = scaling_picture("speedup", "Speedup", "speedup", [ChartSeries(HOSTILE, points)], ideal=True)
    assert topology is not None
    assert speedup is not None
    rows = tuple(
        (f"model {number}", str(number * 7 % 20), "3.4", "a longer remark on this row")
        for number in range(20)
    )
    table = Table.of(("model", "images/sec", "speedup", "remark"), rows, words=("model", "remark"))
    return Document(
        "A report",
        HOSTILE,
        (
            Section("Observations", ("Text.", Bullets(("one", HOSTILE)))),
            Section("Scaling", (table, speedup)),
            Section("Machine", (topology,)),
            Section("Run 2", (Bullets(("a", "b", "c"), shown=1),), is_folded=True),
        ),
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        one = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield one
        one.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole document on the disk."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(document_html(whole()))
    return path


def test_a_browser_shows_it_whole_on_a_narrow_screen_without_request_or_error(
    browser: Any, file: Path
) -> None:
    problems: list[str] = []
    width = 400
    view = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
    view.on("console", lambda message: problems.append(message.text))
    view.on("pageerror", lambda error: problems.append(str(error)))
    view.on("request", lambda request: problems.append(request.url))
    view.goto(file.as_uri())
    assert [url for url in problems if url != file.as_uri()] == []
    assert view.title() == "A report"
    assert view.locator("figure svg").count() == 2
    for figure in view.locator("figure svg").all():
        box = there(figure.bounding_box())
        assert 200 < box["width"] <= width
        assert box["height"] > 100
    assert view.locator("tbody tr").count() == 20
    speed = view.locator("tbody td").first.bounding_box()
    assert speed["x"] + speed["width"] <= width
    # The page itself never scrolls sideways; what is wider scrolls in its own box.
    assert view.locator("body").bounding_box()["width"] <= width
    assert view.get_by_text("c", exact=True).is_hidden()
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    names = view.evaluate("[...document.querySelectorAll('svg')].map(s => s.getAttribute('aria-label'))")
    assert all(names)
    view.close()


def test_a_table_sorts_by_number_and_filters(browser: Any, file: Path) -> None:
    view = browser.new_page()
    view.goto(file.as_uri())
    numbers = view.locator("tbody tr td:nth-child(2)")
    for order in (sorted(range(20), reverse=True), sorted(range(20))):
        view.locator("th button", has_text="images/sec").click()
        assert [int(text) for text in numbers.all_inner_texts()] == order
    view.locator("input").fill("MODEL 13")  # a model, and images/sec of another
    assert view.locator("tbody tr:visible").count() == 2
    assert "2 of 20 rows" in view.locator("label").inner_text()
    view.locator("summary", has_text="Run 2").click()
    view.locator("summary", has_text="2 more").click()
    assert view.get_by_text("c", exact=True).is_visible()
    view.close()
