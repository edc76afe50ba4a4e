"""Pictures: well-formed SVG with names, labels and counts in it."""

from xml.etree import ElementTree

from gputopo.report.document import Picture
from gputopo.report.pictures.charts import (
    ChartPoint,
    ChartSeries,
    over_time_picture,
    scaling_picture,
)
from gputopo.values.run.over_time import Curve, Happening, OverTime

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: Picture | None) -> list[str]:
    """All text in a picture, which must be well-formed."""
    assert picture is not None
    root = ElementTree.fromstring(picture.svg)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == picture.title
    assert picture.alt in root.get("aria-label", "")
    return ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]


def test_a_chart_has_its_labels_and_counts_and_says_its_last_values() -> None:
    series = [ChartSeries("a <b> $x$", (ChartPoint(1, 1.0), ChartPoint(2, 1.9, 1.8, 2.0)))]
    picture = scaling_picture("speedup", "Speedup", "speedup", series, ideal=True)
    shown = texts(picture)
    assert {"a <b> $x$", "ideal", "1", "2", "GPUs"} <= set(shown)
    assert picture is not None
    assert "a <b> $x$ 1.9 at 2" in picture.alt
    assert scaling_picture("speedup", "Speedup", "speedup", []) is None


def test_of_many_series_the_first_eight_have_names() -> None:
    series = [ChartSeries(f"job {n}", (ChartPoint(1, 1.0), ChartPoint(2, 1 + n / 20))) for n in range(20)]
    shown = texts(scaling_picture("speedup", "Speedup", "speedup", series))
    names = [text for text in shown if text.startswith("job")]
    assert sorted(names) == sorted(f"job {n}" for n in range(8))
    assert "12 more" in shown


def test_an_axis_that_does_not_begin_at_zero_is_marked() -> None:
    for values, is_broken in (((1500.0, 1480.0), True), ((1500.0, 300.0), False)):
        curve = Curve("GPU 0", (0.0, 1.0), values)
        shown = " ".join(texts(over_time_picture("run", "images/sec", OverTime((curve,), {}, (), 2.0))))
        assert ("(not from 0)" in shown) == is_broken


def test_a_name_of_any_length_with_any_character_leaves_the_chart_its_room() -> None:
    points = (ChartPoint(1, 1.0), ChartPoint(2, 1.9))
    series = [
        ChartSeries("x" * 5000, points),
        ChartSeries("a\x00b\nc\x1b[31m \u202e", points),
        ChartSeries("\u6a21\u578b", points),
    ]
    picture = scaling_picture("speedup", "Speedup", "speedup", series)
    shown = texts(picture)
    assert {"a?b c?[31m ?", "\u6a21\u578b"} <= set(shown)
    assert max(map(len, shown)) < 100


def test_a_run_over_time_marks_what_happened_on_every_panel_and_says_faults() -> None:
    curve = Curve("GPU 0", (0.0, 1.0, 2.0), (100.0, 101.0, 80.0))
    run = OverTime((curve,), {"core clock, MHz": (curve,)}, (Happening(1.5, "GPU 0 slow 20%", True),), 2.0)
    picture = over_time_picture("run", "images/sec", run)
    broken = {f"{unit} (not from 0)" for unit in ("images/sec", "core clock, MHz")}
    assert {*broken, "GPU 0", "GPU 0 slow 20%"} <= set(texts(picture))
    assert picture is not None
    assert "GPU 0 slow 20% after 2 s" in picture.alt
