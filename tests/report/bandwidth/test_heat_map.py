import pytest

from gputopo.cli.printing import for_this_stdout
from gputopo.report.bandwidth.heat_map import SHADES, heat_part
from gputopo.report.bandwidth.numbers import Numbers
from gputopo.report.document import Section, block_lines
from gputopo.report.layout import text_of
from gputopo.values.bandwidth import Bandwidth, Sample
from tests.invented_bandwidths import machine_with, pair
from tests.report.shown import cells_of, table_of


def heat(*samples: Sample) -> Section | None:
    return heat_part(Numbers(machine_with(3), Bandwidth(source="test", samples=samples)))


def cell(part: Section | None, source: str, destination: str) -> str:
    return cells_of(table_of(part))[source][destination]


@pytest.mark.parametrize(("speed", "shade"), [(15.0, "█"), (9.0, "▓"), (4.0, "▒"), (3.9, "░")])
def test_the_shade_is_the_share_of_the_fastest_link(speed: float, shade: str) -> None:
    part = heat(pair(0, 1, 20.0), pair(1, 0, speed))
    assert cell(part, "GPU0", "GPU1").startswith("██")
    assert cell(part, "GPU1", "GPU0").startswith(shade * 2)


def test_the_faster_path_stands_and_the_path_through_the_host_is_marked() -> None:
    part = heat(pair(0, 1, 5.0), pair(0, 1, 6.0, staged=True), pair(1, 0, 6.0), pair(1, 0, 5.0, staged=True))
    assert cell(part, "GPU0", "GPU1").split() == ["██", "6.00s"]
    assert cell(part, "GPU1", "GPU0").split() == ["██", "6.00"]


def test_paths_that_are_as_fast_but_for_noise_are_not_marked() -> None:
    part = heat(
        pair(0, 1, 12.2), pair(0, 1, 12.5, staged=True), pair(1, 0, 12.2), pair(1, 0, 12.6, staged=True)
    )
    assert cell(part, "GPU0", "GPU1").split() == ["██", "12.2"]
    assert cell(part, "GPU1", "GPU0").split() == ["██", "12.6s"]
    assert part is not None
    assert (
        table_of(part)
        .notes[-1]
        .startswith("s: through the host, over 3% faster there than directly, or no direct")
    )


def test_the_only_path_that_was_measured_is_marked_if_it_is_the_host_s() -> None:
    part = heat(pair(0, 1, 5.0, staged=True), pair(1, 0, 5.0))
    assert cell(part, "GPU0", "GPU1").endswith("5.00s")
    assert cell(part, "GPU1", "GPU0").endswith("5.00 ")


def test_the_host_has_a_row_and_a_column_where_copies_with_it_were_measured() -> None:
    up = Sample(kind="h2d", source="host", destination="gpu:0", median_gb_per_s=10.0)
    part = heat(pair(0, 1, 20.0), up)
    assert cell(part, "host", "GPU0").split() == ["▓▓", "10.0"]
    assert cell(part, "GPU0", "host") == "-"
    assert cell(part, "host", "host") == ""


def test_one_number_is_no_map() -> None:
    assert heat(pair(0, 1, 20.0)) is None
    assert heat() is None


def test_a_terminal_paints_the_shades_and_the_text_is_the_same() -> None:
    part = heat(pair(0, 1, 20.0), pair(1, 0, 1.0))
    assert part is not None
    lines = block_lines(table_of(part), 78)
    styles = {text[0]: style for line in lines for text, style in line if text[:1] in "█░" and text}
    assert styles == {shade: style for _, shade, style in SHADES if shade in "█░"}


def test_a_terminal_that_knows_ascii_only_gets_other_shades(monkeypatch: pytest.MonkeyPatch) -> None:
    part = heat(pair(0, 1, 20.0), pair(1, 0, 10.0), pair(1, 2, 5.0), pair(2, 1, 1.0))
    assert part is not None

    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr("sys.stdout", Ascii())
    text = text_of(for_this_stdout(block_lines(table_of(part), 78)))
    assert text.isascii()
    shades = {row.split()[1][0] for row in text.splitlines() if row.startswith("GPU")}
    assert len(shades) == 3
