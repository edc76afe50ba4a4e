"""Hosts whose data folders differ are named, with one of the files."""

from pathlib import Path

import pytest

from gputopo.launch.data.folder import Listing, listed, require_same
from gputopo.values.errors import ExitCode, InputError

FOLDER = Path("/data")
OWN = Listing({f"train-{number:05d}-of-01024": 1000 + number for number in range(1024)})


def but(**changed: int | None) -> Listing:
    """Return the listing with other sizes, or without files, by the shard's number (s7=12)."""
    by_name = {f"train-{int(short[1:]):05d}-of-01024": size for short, size in changed.items()}
    return Listing({name: size for name, size in {**OWN.sizes, **by_name}.items() if size is not None})


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (
            but(s3=None),
            "host n2 (rank 2) has 1023 of the 1024 train files in /data: train-00003-of-01024 is missing",
        ),
        (
            but(s3=None, s7=None, s9=None),
            "host n2 (rank 2) has 1021 of the 1024 train files in /data: "
            "train-00003-of-01024 and 2 more are missing",
        ),
        (
            but(s2000=5),
            "rank 0 has 1024 of the 1025 train files that host n2 (rank 2) has in /data: "
            "train-02000-of-01024 is missing",
        ),
        (but(s5=12), "/data/train-00005-of-01024 has 12 bytes on host n2 (rank 2), and 1005 on rank 0"),
        (Listing({}, "there is no folder /data"), "host n2 (rank 2): there is no folder /data"),
    ],
)
def test_a_host_that_differs_is_named_with_what_differs(there: Listing, says: str) -> None:
    others = {"n1 (rank 1)": OWN, "n2 (rank 2)": there}
    with pytest.raises(InputError) as refused:
        require_same(FOLDER, "train", OWN, others)
    assert refused.value.what == says
    assert refused.value.exit_code == ExitCode.USAGE


def test_all_hosts_that_differ_are_listed() -> None:
    others = {f"n{rank} (rank {rank})": but(s1=None) if rank > 1 else OWN for rank in range(1, 4)}
    with pytest.raises(InputError, match=r"is missing; so it is with n3 \(rank 3\)$"):
        require_same(FOLDER, "train", OWN, others)


def test_hosts_with_the_same_files_pass() -> None:
    require_same(FOLDER, "train", OWN, {"n1 (rank 1)": but()})


def test_a_listing_has_the_files_of_one_subset_with_their_sizes(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        (tmp_path / name).write_bytes(b"x" * len(name))
    names = ("train-00000-of-00002", "train-00001-of-00002")
    assert listed(tmp_path, "imagenet", "train") == Listing({name: len(name) for name in names})


def test_a_listing_of_a_folder_that_cannot_be_used_has_the_reason(tmp_path: Path) -> None:
    assert listed(tmp_path / "nowhere", "imagenet", "train").error == f"there is no folder {tmp_path}/nowhere"
