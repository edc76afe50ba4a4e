"""Files of several hosts: `--fleet --from`, `--record` and `--baseline`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gputopo.launch import read_machines
from gputopo.values.errors import GputopoError, InputError, UsageError

if TYPE_CHECKING:
    from gputopo.values.machine import Machine

_NOT_OF_FILES = re.compile(r"[^\w .:@+()-]|^\.")  # not in names of files
_MAX_NAME = 200  # characters; Linux allows 255 bytes


def files_of_fleet(sources: Sequence[str], does: str) -> list[str]:
    """Return the files of a fleet, given or in a folder. Raises UsageError for fewer than two."""
    files = list(sources)
    if len(files) == 1 and Path(files[0]).is_dir():
        files = sorted(str(path) for path in Path(files[0]).iterdir() if path.is_file())
    if len(files) < 2:
        raise UsageError(
            f"--fleet {does} and needs files of at least two hosts",
            "give --from A.json B.json ..., or --from FOLDER: what gputopo inspect --record writes on "
            "each host; or list the hosts to ask through ssh: --hosts LIST, or use srun: srun gputopo "
            "inspect --fleet",
        )
    return files


def record(machines: "Mapping[str, Machine | GputopoError]", folder: Path) -> None:
    """Write the machine of each host to a file named after the host. Raises InputError."""
    from gputopo.topology import without_identities
    from gputopo.values import schema

    schema.make_folder(folder)
    for name, machine in machines.items():
        if not isinstance(machine, GputopoError):
            file = _NOT_OF_FILES.sub("_", name)[:_MAX_NAME]
            schema.write(folder / f"{file}.json", without_identities(machine))


def recorded(folder: Path) -> "dict[str, Machine]":
    """Return the machines of a folder, by host. Raises InputError."""
    files = sorted(str(path) for path in folder.glob("*.json"))
    if not files:
        raise InputError(f"--baseline {folder} has no recordings", "create them: --fleet --record FOLDER")
    machines = read_machines(files)
    return {name: machine for name, machine in machines.items() if not isinstance(machine, GputopoError)}
