"""Every table of the published documents, made anew, cell by cell against what they print.

The documents are not part of the repository: where they are absent, what ships of them is compared.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputopo.measurements.documents.made import DOCUMENTS, made
from gputopo.reference.published import published, published_derived
from gputopo.report.document import Document, Table
from gputopo.report.study.published import published_document

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
NO_FIGURE = frozenset({"missing", "error", "N/A", ""})
# Derived figures that no table has: of running text, and the label of a row.
IN_NO_TABLE = frozenset({"row_label"})

Row = tuple[str, ...]


@functools.cache
def document(name: str) -> Document:
    return published_document(name, made(name))


def tables(name: str) -> Iterator[tuple[str, Table]]:
    """The tables of a document with the titles of their sections."""
    for part in document(name).sections:
        yield from ((part.title, block) for block in part.blocks if isinstance(block, Table))


def rows(name: str, title: str) -> list[Row]:
    return [row for found, table in tables(name) if found == title for row in table.rows]


def lines(number: str) -> list[str]:
    """The text of a document, skipped where it is absent."""
    found = sorted(SEEDS.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip("the published documents are not here")
    return found[0].read_text().splitlines()


def printed(number: str) -> Iterator[tuple[str, list[Row]]]:
    """Each Markdown table of a document with the last line of text before it; its rows without the heads."""
    before, some = "", list[Row]()
    for line in [*lines(number), ""]:
        if "|" in line:
            some.append(tuple(cell.strip() for cell in line.strip().strip("|").split("|")))
            continue
        if len(some) > 2:
            yield before, [row for row in some[1:] if not set("".join(row)) <= set("-: ")]
        some = []
        before = line.strip("* #:") or before


def value(cell: str) -> float | str | None:
    """A cell as what it means: its number, nothing where there is no figure, else its text."""
    if cell in NO_FIGURE:
        return None
    try:
        return float(cell.replace(",", "").removesuffix("x").removesuffix("%"))
    except ValueError:
        return cell


def values(row: Row) -> list[float | str | None]:
    return [value(cell) for cell in row]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_figure_that_ships_of_a_document_is_a_cell_of_its_tables(name: str) -> None:
    source = DOCUMENTS[name]
    shown = (value(cell) for _, table in tables(name) for row in table.rows for cell in row)
    cells = Counter(one for one in shown if isinstance(one, float))
    notes = " ".join(note for _, table in tables(name) for note in table.notes)
    raw = [one.images_per_sec for one in published() if one.source == source]
    derived = [one for one in published_derived() if one.source == source and one.metric not in IN_NO_TABLE]
    absent = Counter([*raw, *(float(one.printed) for one in derived)]) - cells
    absent = Counter({one: count for one, count in absent.items() if f"{one:.2f}x" not in notes})
    assert absent == {"keras-multi-gpu": Counter({91.15: 1})}.get(name, Counter())  # made anew it is 90.00


def test_each_cell_of_tensorpack_is_as_printed() -> None:
    found = [
        [*values((first,)), *values(tuple(three.split("/"))), *values((last,))]
        for _, some in printed("000")
        for first, three, last in some
    ]
    own = [
        values(row)
        for title in ("images/sec, replicated", "images/sec, parameter_server")
        for row in rows("tensorpack", title)
    ]
    assert found == own


def test_each_cell_of_the_official_spreadsheet_is_as_printed_but_the_labels_of_two_rows() -> None:
    """Its cells are printed without anything between them."""
    text = "\n".join(lines("001"))
    images = rows("tf-official", "images/sec")
    for label, row in zip("1234", images, strict=True):  # 3 and 4 are 4 and 8 GPUs
        assert f"{label}{''.join(row[1:])}" in text
    ratios = ("Synthetic over real data", "Speedup with batch 64 over that with 32")
    for title in ("Speedup", "Efficiency", *ratios):
        for row in rows("tf-official", title):
            assert "".join(row) in text, (title, row)
    for title in ("P100 over K80", "resnet50 over inception3"):
        (table,) = (table for found, table in tables("tf-official") if found == title)
        total = re.search(r"[\d.]+x", table.notes[0])
        assert total
        assert "".join(table.rows[0][1:-1]) + total[0] in text  # the document has the median of all alone
        for row in table.rows[1:]:
            assert "".join(row[1:-1]) + "\n" in text


def test_each_cell_of_the_cpu_benchmark_is_as_printed_and_its_zeros_are_missing() -> None:
    found = dict(printed("003"))
    models = found.pop(next(title for title in found if not title.startswith(("syn-", "real-"))))
    assert len(found) == 9
    for title, some in found.items():
        assert [tuple("missing" if cell == "0" else cell for cell in row) for row in some] == [
            tuple(row) for row in rows("lambda-cpu", title)
        ]
    own = rows("lambda-cpu", "Models")
    different = {}
    for there, here in zip(models, own, strict=True):
        sizes = [float(cell.split()[0]) for cell in there[2:5]]
        mine = [float(cell) for cell in here[3:]]
        assert there[1] == here[1]
        if not all(abs(one - other) <= 0.5 for one, other in zip(sizes, mine, strict=True)):
            different[here[0]] = (sizes, mine)
    assert set(different) == {"inception3", "alexnet"}  # other models than those that were run


def test_each_cell_of_the_keras_experiments_is_as_printed_but_one_efficiency() -> None:
    found = [some for _, some in printed("004")]
    medians, cifar, clocks, pairs, mlp, speedups, efficiencies, inception, resnet, alone, cards = found
    name = "keras-multi-gpu"

    by_number = {row[0]: row[-1] for row in rows("tf-official", "Speedup")}
    by_number_too = {row[0]: row[-1] for row in rows("tf-official", "Efficiency")}
    assert medians == [(number, by_number[number], by_number_too[number]) for number in ("2", "4", "8")]

    own = rows(name, "CIFAR-10 on 2 Tesla M60")
    assert cifar == [(row[0], row[1], *row[3:]) for row in own[:-1]]

    own = rows(name, "Each GPU and its clock")
    mine = [[*values(row[:1]), *values(row[2:4]), float(row[4]) / 1000, value(row[5])] for row in own]
    assert [values(row) for row in clocks] == [pytest.approx(row) for row in mine]

    own = rows(name, "Pairs of GPUs")
    assert [values(row[3:]) for row in pairs[1:]] == [values(row[1:5]) for row in own]

    own = rows(name, "kuza55 on a multilayer perceptron, 2 GPUs")
    assert [values(row) for row in mlp] == [values(row) for row in own]

    own = rows(name, "avolkov1 on CIFAR-10, by batch")
    assert [values(row) for row in speedups[1:]] == [values(row[:4]) for row in own]
    assert [
        (one, other)
        for there, here in zip(efficiencies[1:], own, strict=True)
        for one, other in zip(there[1:], here[4:], strict=True)
        if one != other
    ] == [("91.15%", "90.00%")]

    for some, title in ((inception, "inception3"), (resnet, "resnet50")):
        own = rows(name, f"Keras methods, {title}")
        assert [values(row) for row in some[1:]] == [values(row) for row in own]

    own = rows(name, "One GPU, percent of tf_cnn_benchmarks")
    assert [values(row[:2] + row[3:]) for row in alone] == [values(row) for row in own]
    own = rows(name, "GeForce GTX 1070 over Tesla M60, one GPU")
    short = [(row[0], row[1].removeprefix("keras "), *row[2:]) for row in own]
    assert cards == short
