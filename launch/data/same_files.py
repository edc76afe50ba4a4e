"""Whether hosts that read a data folder each for itself have the same files, by names and sizes."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gputopo.launch.data import folder
from gputopo.launch.data.folder import Subset
from gputopo.values.errors import InputError

_HINT = "each host reads the folder for itself: it must have one name and the same files on all of them"


class Listing(msgspec.Struct, frozen=True):
    """The files of a subset as a host has them: bytes by name. `error`: why there are none."""

    sizes: dict[str, int]
    error: str | None = None


def listed(path: Path, name: str, subset: Subset) -> Listing:
    """List a subset of the data set in a folder of this host."""
    try:
        files = folder.find(path, name).of(subset)
        return Listing({file.name: file.stat().st_size for file in files})
    except InputError as error:
        return Listing({}, error.what)
    except OSError as error:
        return Listing({}, f"{error.filename} cannot be read: {error.strerror}")


def require_same(path: Path, subset: Subset, own: Listing, others: Mapping[str, Listing]) -> None:
    """Raise InputError for hosts whose files are not those of rank 0 (`own`). `others`: by their words."""
    found = {
        host: what
        for host, there in others.items()
        if (what := _difference(path, subset, own, there, host)) is not None
    }
    if not found:
        return
    (_, what), *rest = found.items()
    also = f"; so it is with {', '.join(host for host, _ in rest)}" if rest else ""
    raise InputError(f"{what}{also}", _HINT)


def _difference(path: Path, subset: Subset, own: Listing, there: Listing, host: str) -> str | None:
    if there.error is not None:
        return f"host {host}: {there.error}"
    lacking = sorted(own.sizes.keys() - there.sizes.keys())
    if lacking:
        got = len(own.sizes) - len(lacking)
        return f"host {host} has {got} of the {len(own.sizes)} {subset} files in {path}: {_such(lacking)}"
    more = sorted(there.sizes.keys() - own.sizes.keys())
    if more:
        has = f"{len(own.sizes)} of the {len(there.sizes)} {subset} files that host {host} has in {path}"
        return f"rank 0 has {has}: {_such(more)}"
    for name, size in own.sizes.items():
        if there.sizes[name] != size:
            return f"{path / name} has {there.sizes[name]} bytes on host {host}, and {size} on rank 0"
    return None


def _such(names: list[str]) -> str:
    """Say which files are missing."""
    return (
        f"{names[0]} is missing" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are missing"
    )
