"""Models of a report: a table with units, a page each, and file names that lead nowhere else."""

from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from gputopo.measurements import study_of
from gputopo.report import markdown_files, study_document
from gputopo.report.document import Section, Table
from gputopo.values.run.measurement import Measurement


def run(model: str, n: int, speed: float | None, reason: str | None = None) -> Measurement:
    """One run on `n` GPUs; without a speed it failed."""
    return Measurement(
        source=f"{model}-{n}", model=model, n_gpus=n, images_per_sec=speed, batch_per_gpu=64, machine="box",
        gpu="Test", status="complete" if speed else "failed", variable_update="replicated", reason=reason,
    )  # fmt: skip


def pages_of(*runs: Measurement) -> list[Section]:
    """The sections of these runs that have their own files."""
    return [part for part in study_document(study_of(runs, title="t")).sections if part.page]


def tables_of(*runs: Measurement) -> dict[str, Table]:
    """The first table of each section of these runs."""
    document = study_document(study_of(runs, title="t"))
    return {
        part.title: table
        for part in document.sections
        if (table := next((one for one in part.blocks if isinstance(one, Table)), None))
    }


def test_the_table_of_models_has_millions_memory_and_multiply_accumulates() -> None:
    table = tables_of(run("resnet50", 1, 100.0), run("unheard-of", 1, 5.0))["Models"]
    assert table.heads == ("model", "input", "parameters, millions", "parameter MiB", "feature MiB", "GMAC")
    assert [row[:4] for row in table.rows] == [("resnet50", "224 x 224", "25.56", "97.5")]


def test_numbers_of_a_column_have_their_points_below_one_another_and_empty_columns_go() -> None:
    table = tables_of(run("a", 1, 1562.0), run("b", 1, 31.7))["All runs"]
    assert table.heads == ("job", "GPUs", "images/sec", "±%", "runs"), "not what no run has"
    assert [row[2] for row in table.rows] == ["1,562  ", "31.7"]


def test_a_page_has_what_a_model_is_and_each_of_its_figures_once() -> None:
    failed = run("resnet50", 4, None, "no memory")
    runs = (run("resnet50", 1, 100.0), run("resnet50", 2, 190.0), failed, run("mine", 1, 7.0))
    known, unknown = pages_of(*runs)
    sizes, figures = known.blocks
    assert isinstance(sizes, Table)
    assert isinstance(figures, Table)
    assert ("parameters", "25.56 million (25,559,081)") in sizes.rows
    assert ("memory of the parameters", "97.5 MiB, 102.2 MB (float32)") in sizes.rows
    place = figures.heads.index
    shown = [(row[place("GPUs")], row[place("images/sec")], row[place("speedup")]) for row in figures.rows]
    assert shown == [("1", "100.0", "1.00x"), ("2", "190.0", "1.90x"), ("4", "failed", "")]
    assert figures.rows[2][place("remark")] == "no memory"
    assert unknown.page == "mine"
    assert "does not have this model" in str(unknown.blocks[0])


@given(st.lists(st.text(max_size=90) | st.sampled_from(["../../etc/x", "A", "a", "..", "", "a-2", "con\0"])))
def test_file_names_differ_on_any_disk_and_stay_in_their_folder(models: list[str]) -> None:
    study = study_document(study_of([run(model, 1, 1.0) for model in models], title="t"))
    pages = [PurePosixPath(path) for path in markdown_files(study, "report.md") if path != "report.md"]
    assert len({path.name.lower() for path in pages}) == len(set(models))
    for path in pages:
        assert path.parent == PurePosixPath("report-models")
        assert path.suffix == ".md"
        assert path.name.isascii()
        assert not path.name.startswith((".", "-"))
        assert len(path.name) < 80
