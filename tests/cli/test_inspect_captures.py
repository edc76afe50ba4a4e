"""Every public capture is shown in every format. They lie beside the repository and are not part of it."""

from pathlib import Path

import pytest

from gputopo.values import schema
from gputopo.values.finding import Inspection
from tests.cli.conftest import Call
from tests.report.exposition_grammar import read

FOLDER = Path(__file__).parents[3] / "shared" / "captures"
ROOMS = ("topo", "smi_xml", "smi_text", "nccl_xml", "other")
CAPTURES = sorted(
    path
    for room in ROOMS
    if (FOLDER / room).is_dir()
    for path in (FOLDER / room).iterdir()
    if path.name != "index.csv"
)


@pytest.mark.skipif(not CAPTURES, reason="the folder of captures is not beside this checkout")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_a_capture_is_shown_in_every_format_within_80_columns(
    path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = call("inspect", "--from", path)
    if table.code == 2:  # a capture that holds no machine is refused, in two lines
        assert (table.out, len(table.err.splitlines())) == ("", 2)
        return
    assert (table.code, table.err) == (0, "")
    lines = table.out.splitlines()
    assert (max(map(len, lines)) <= 80, len(lines) <= 40) == (True, True)
    found = schema.decode(call("inspect", "--from", path, "--json").out, Inspection, origin="stdout").findings
    serious = {one.id for one in found if one.severity != "info"}
    assert serious == {one for one in serious if one in "\n".join(lines[:15])}
    whole = call("inspect", "--all", "--from", path).out.partition("\nLines not understood\n")[0]
    assert max(map(len, whole.splitlines())) <= 80
    assert "### Machine\n" in call("inspect", "--all", "--from", path, "--format", "markdown").out
    assert read(call("inspect", "--from", path, "--format", "prometheus").out)["gputopo_gpus"]
    shown = call("inspect", "--from", path, "--diff", path).out
    assert "No difference." in shown or "Nothing could" in shown
