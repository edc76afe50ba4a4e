"""Runs that fail or are interrupted: the reason, the exit code, and what was measured until then."""

import os
import signal
from pathlib import Path
from tempfile import TemporaryFile

from gputopo.values import schema
from gputopo.values.run.result import Result
from tests.cli.conftest import THEN_BEHAVE, WITH_WORKER, ByName, Call, pretending
from tests.kit import commands


def test_a_run_that_fails_shows_why_and_what_was_measured(
    call: Call, without_gpu: None, worker: ByName
) -> None:
    worker("killed")
    done = call("run", "--model", "alexnet", "--json")
    assert done.code == 137
    assert "SIGKILL" in done.err
    result = schema.decode(done.out, Result, origin="stdout")
    assert (result.status, result.exit_code, result.steps) == ("failed", 137, 1)


IN_THE_WAY = """
import os, sys
os.mkdir(os.path.dirname(sys.argv[1]) + "/result.json")
behaviour = "works"
"""


def test_a_result_that_cannot_be_written_is_still_shown(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker(IN_THE_WAY + THEN_BEHAVE)
    done = call("run", "--model", "alexnet", "--output", tmp_path / "out")
    assert done.code == 3
    assert done.out.startswith("40.0 images/sec")
    assert "cannot write" in done.out
    assert "it is a folder" in " ".join(done.out.split())


def test_an_interrupted_command_reports_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    asked = ("run", "--model", "alexnet", "--json", "--output", str(tmp_path / "out"))
    arguments = ("-c", WITH_WORKER, pretending(tmp_path, "hangs"), "gputopo", *asked)
    with (
        TemporaryFile() as out,
        commands.started(*arguments, out=out.fileno(), GPUTOPO_ROOT=str(tmp_path / "root")) as (command, err),
    ):
        while not (line := err.readline()).startswith("step 1:"):
            assert line
        os.kill(command.pid, signal.SIGINT)
        err.read()
        assert command.wait(60) == 130
        out.seek(0)
        result = schema.decode(out.read(), Result, origin="stdout")
    assert (result.status, result.steps, result.exit_code) == ("interrupted", 1, 130)
    assert schema.decode((tmp_path / "out/result.json").read_bytes(), Result, origin="file") == result
