"""Models of a report: a table with units."""

from gputopo.report.document import Table
from gputopo.report.study_models import model_table
from gputopo.report.study_tables import table


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
