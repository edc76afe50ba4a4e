"""A third of the public captures is shown within a page. They lie beside the repository, not in it."""

from pathlib import Path

import pytest

from gputopo.values import schema
from gputopo.values.finding import Inspection
from tests.cli.conftest import Call
from tests.report.exposition_grammar import read

FOLDER = Path(__file__).parents[3] / "shared" / "captures"
ROOMS = ("topo", "smi_text", "nccl_xml", "other")
CAPTURES = {
    room: sorted(path for path in (FOLDER / room).iterdir() if path.name != "index.csv")
    for room in ROOMS
    if (FOLDER / room).is_dir()
}
pytestmark = pytest.mark.skipif(not CAPTURES, reason="the folder of captures is not beside this checkout")


@pytest.fixture(autouse=True)
def without_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("room", CAPTURES)
def test_a_capture_is_shown_within_80_columns_and_its_faults_in_the_first_lines(
    room: str, call: Call
) -> None:
    for path in CAPTURES[room][::3]:
        table = call("inspect", "--from", path)
        if table.code == 2:  # a capture that holds no machine is refused, in two lines
            assert (table.out, len(table.err.splitlines())) == ("", 2), path
            continue
        assert (table.code, table.err) == (0, ""), path
        lines = table.out.splitlines()
        assert (max(map(len, lines)) <= 80, len(lines) <= 40) == (True, True), path
        inspection = schema.decode(call("inspect", "--from", path, "--json").out, Inspection, origin="stdout")
        serious = {finding.id for finding in inspection.findings if finding.severity != "info"}
        assert serious == {one for one in serious if one in "\n".join(lines[:15])}, path


@pytest.mark.parametrize("room", CAPTURES)
def test_the_longest_capture_of_a_kind_is_shown_in_every_format(room: str, call: Call) -> None:
    asked = ("inspect", "--from", max(CAPTURES[room], key=lambda path: path.stat().st_size))
    whole = call(*asked, "--all").out.partition("\nLines not understood\n")[0]
    assert max(map(len, whole.splitlines())) <= 80
    assert "### Machine\n" in call(*asked, "--all", "--format", "markdown").out
    assert read(call(*asked, "--format", "prometheus").out)["gputopo_gpus"]
    assert "No difference." in call(*asked, "--diff", asked[-1]).out
