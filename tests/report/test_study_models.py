"""Models of a report: a table with units, a page each, and file names that lead nowhere else."""

from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from gputopo.measurements import study_of
from gputopo.report.document import Table
from gputopo.report.study_models import MAX_PAGES, file_names, model_pages, model_table
from gputopo.report.study_tables import table
from gputopo.values.run.measurement import Measurement


def run(model: str, n: int, speed: float | None, **more: str) -> Measurement:
    status = "complete" if speed else "failed"
    return Measurement(
        source=f"{model}-{n}", model=model, n_gpus=n, images_per_sec=speed, batch_per_gpu=64, machine="box",
        gpu="Test", status=status, variable_update="replicated", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_table_of_models_has_millions_memory_and_multiply_accumulates() -> None:
    (table,) = model_table(["resnet50", "unheard-of"])
    assert isinstance(table, Table)
    assert table.heads == ("model", "input", "parameters, millions", "parameter MiB", "feature MiB", "GMAC")
    assert [row[:4] for row in table.rows] == [("resnet50", "224 x 224", "25.56", "97.5")]


def test_numbers_of_a_column_have_their_points_below_one_another_and_empty_columns_go() -> None:
    found = table(
        ["job", "speed", "none"], [["a", "1562", ""], ["b", "31.7", ""], ["c", "2.25x", ""]], words=("job",)
    )
    assert found.heads == ("job", "speed")
    assert [row[1] for row in found.rows] == ["1562    ", "31.7  ", "2.25x"]


def test_a_page_has_what_a_model_is_and_each_of_its_figures_once() -> None:
    failed = run("resnet50", 4, None, reason="no memory")
    runs = [run("resnet50", 1, 100.0), run("resnet50", 2, 190.0), failed, run("mine", 1, 7.0)]
    known, own = model_pages(study_of(runs, title="t"))
    facts, figures = known.blocks
    assert isinstance(facts, Table)
    assert isinstance(figures, Table)
    assert ("parameters", "25.56 million (25,559,081)") in facts.rows
    assert ("memory of the parameters", "97.5 MiB, 102.2 MB (float32)") in facts.rows
    place = figures.heads.index
    shown = [(row[place("GPUs")], row[place("images/sec")], row[place("speedup")]) for row in figures.rows]
    assert shown == [("1", "100.0", "1.00x"), ("2", "190.0", "1.90x"), ("4", "failed", "")]
    assert figures.rows[2][place("remark")] == "no memory"
    assert own.name == "mine"
    assert "does not have this model" in str(own.blocks[0])


@given(st.lists(st.text(max_size=90) | st.sampled_from(["../../etc/x", "A", "a", "..", "", "a-2", "con\0"])))
def test_file_names_differ_on_any_disk_and_stay_in_their_folder(titles: list[str]) -> None:
    names = file_names(titles)
    assert len({name.lower() for name in names}) == len(titles)
    for name in names:
        assert PurePosixPath(f"{name}.md").name == f"{name}.md"
        assert name.isascii()
        assert not name.startswith((".", "-"))
        assert 0 < len(name) < 80


def test_a_table_of_a_thousand_models_has_no_thousand_pages() -> None:
    runs = [run(f"model-{number}", 1, 1.0) for number in range(MAX_PAGES + 50)]
    assert len(model_pages(study_of(runs, title="t"))) == MAX_PAGES
