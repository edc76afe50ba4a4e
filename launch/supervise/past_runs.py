"""The results of runs before this one, from gputopo's folder of runs."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gputopo.launch.supervise.run_folder import RunFolder
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.result import Result

MOST = 50  # looked at: what is older is of other times; reading them takes some ms


def latest_results(home: Path, *, but: Path | None = None) -> Iterator[tuple[str, Result]]:
    """Give folder and result of the latest runs, latest first. What has no readable result is left out.

    `home`: the folder of all runs, whose names begin with their time. `but`: a run to leave out.
    """
    if not home.is_dir():
        return
    folders = sorted((path for path in home.iterdir() if path.is_dir()), reverse=True)
    for path in islice(folders, MOST):
        file = RunFolder(path).result
        if path == but or not file.is_file():
            continue
        try:
            yield str(path), schema.decode(file.read_bytes(), Result, origin=str(file))
        except (OSError, InputError):
            continue
