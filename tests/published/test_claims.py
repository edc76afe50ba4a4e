"""Every derived figure of the published documents, made anew from their raw figures."""

import functools

import pytest

from gputopo.measurements import published_study
from gputopo.values.study import Figures
from tests.published.claims import recomputed

# The name of each document, by the source of its figures.
DOCUMENTS = {
    "tensorpack": "tensorpack",
    "tensorflow.org": "tf-official",
    "lambda-2018": "lambda-cpu",
    "rossumai": "keras-multi-gpu",
}


@functools.cache
def figures(source: str) -> Figures:
    return published_study(DOCUMENTS[source]).figures


@pytest.mark.parametrize(
    ("source", "of", "from_speedups_alone"), [("tensorflow.org", 274, 0), ("rossumai", 170, 31)]
)
def test_all_derived_figures_are_made_anew_to_the_last_digit_but_those_that_are_errors(
    source: str, of: int, from_speedups_alone: int
) -> None:
    """Of CIFAR-10 the document has speedups alone: its efficiencies are made from these."""
    rows = recomputed(source, figures(source))

    assert len(rows) == of
    assert [one.row.metric for one in rows if one.computed is None] == ["speedup"] * from_speedups_alone
    wrong = [(one.row.metric, one.row.printed) for one in rows if not one.agrees]
    assert wrong == {"tensorflow.org": [], "rossumai": [("efficiency_percent", "91.15")]}[source]


def test_medians_of_the_official_tables_are_those_that_were_published() -> None:
    of = figures("tensorflow.org")
    found = [(one.n_gpus, one.speedup, one.efficiency_percent) for one in of.scaling_medians]
    expected = [(2, 1.93, 96.42), (4, 3.87, 96.84), (8, 7.44, 93.02)]
    assert [(number, round(a, 2), round(b, 2)) for number, a, b in found] == expected


def test_every_cell_of_the_four_documents_ships_with_its_source_failed_ones_with_a_reason() -> None:
    counts = {}
    for source in DOCUMENTS:
        cells = figures(source).cells
        counts[source] = (
            sum(len(cell.repeats) for cell in cells),
            sum(cell.images_per_sec is None for cell in cells),
        )
        assert all(cell.failed for cell in cells if cell.images_per_sec is None)
    # 423 measurements in the documents, less 8 that one prints twice; 63 cells of 0, 5 of "error" or N/A.
    assert counts == {
        "tensorpack": (32, 0), "tensorflow.org": (64, 0), "lambda-2018": (252, 63), "rossumai": (67, 5),
    }  # fmt: skip
