"""The input over several hosts, each of which reads its own rows: here servers with separate folders."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gputopo.values import schema
from tests.launch.forks import run_program
from tests.launch.train.hosts import serving, spec_of
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.hosts_process import LAYOUTS, SEEN

pytestmark = pytest.mark.tensorflow

HOSTS = 3
BITTEN = "train-00001-of-00003"
EVALUATED = "validation-00001-of-00003"


def write(place: Path, rank: int) -> None:
    """Write the folders of a host."""
    for kind in (*SEEN, "picture", "none"):
        folders.damaged(place / kind, kind)
    for name in ("gone", "lacking", "several", "more", "shorter", "bitten"):
        shutil.copytree(place / "none", place / name)
    if rank == 0:
        (place / "more" / "train-00002-of-00003").unlink()
    if rank == 1:
        shutil.rmtree(place / "gone")
        (place / "lacking" / "train-00002-of-00003").unlink()
        cut = place / "shorter" / BITTEN
        cut.write_bytes(cut.read_bytes()[:-7])
        shutil.rmtree(place / "bitten")
        folders.damaged(place / "bitten", "checksum")
    if rank:
        (place / "several" / BITTEN).unlink()
        (place / "several" / "train-00000-of-00003").unlink()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("hosts")
    places = [root / f"n{rank}" for rank in range(HOSTS)]
    folders.numbered(root / "numbered")
    folders.cifar(root / "cifar")
    for rank, place in enumerate(places):
        shutil.copytree(root / "numbered" / "data", place / "numbered")
        write(place, rank)
    shutil.copytree(root / "cifar" / "bin", places[0] / "cifar")
    every = spec_of(HOSTS, 2)
    with serving(root, every, places):
        schema.write(root / "spec.json", every)
        program = (
            "import os, sys; from tests.launch.train.inputs import hosts_process; os.chdir(sys.argv[1]); "
            "hosts_process.main(*sys.argv[2:])"
        )
        done = run_program("-c", program, str(places[0]), str(root / "spec.json"), str(root / "found.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((root / "found.json").read_text())
    return found


def examples(labels: Any) -> list[int]:
    """Join the labels of steps and towers, without rows that are no examples."""
    return [one for step in labels for tower in step for one in tower if one >= 0]


def batches(found: dict[str, Any]) -> Any:
    return found["labels"], found["sums"]


def joined(values: Any) -> list[Any]:
    return [one for step in values for tower in step for one in tower]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "count"), [("imagenet", 6), ("cifar10", 7)])
def test_an_evaluation_has_each_example_once_and_in_the_rows_of_one_host(
    given: dict[str, Any], layout: tuple[int, int, Any], name: str, count: int
) -> None:
    hosts, each, batch = layout
    several, one = given["evaluations"][f"{name} {hosts}x{each} of {batch}"]
    assert batches(several) == batches(one)
    assert len(examples(several["labels"])) == several["images"] == count


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("task", ["train", "eval"])
def test_records_that_are_bad_without_decoding_are_left_out_alike_on_two_hosts_and_on_one(
    given: dict[str, Any], kind: str, task: str
) -> None:
    several, one = given["left_out"][f"{kind}-{task}"]
    assert batches(several) == batches(one)
    assert several["says"][-1] == one["says"][-1]
    assert several["says"][-1].startswith("1 bad record was left out: ")
    assert 5 not in examples(several["labels"])


def test_for_a_picture_that_cannot_be_decoded_comes_the_next_of_the_same_host(given: dict[str, Any]) -> None:
    several, _ = given["left_out"]["picture-train"]
    sound, _ = given["left_out"]["none-train"]
    for host in range(2):
        own, before = ([label for step in one["labels"] for label in step[host]] for one in (several, sound))
        without = [label for label in before if label != 5]
        assert own[: len(without)] == without
        assert 5 not in own


def test_an_evaluation_counts_each_picture_once_where_one_host_cannot_decode_one(
    given: dict[str, Any],
) -> None:
    several, one = given["left_out"]["picture-eval"]
    assert sorted(examples(several["labels"])) == sorted(examples(one["labels"])) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert several["images"] == 8
    # Label 5 is the first of the second host's four rows.
    assert len(several["labels"][0][1]) == 4
    assert several["labels"][0][1][3] == -1
    assert f"{EVALUATED} record 1 on host n1 (rank 1) (it holds no picture" in several["says"][-1]


def test_a_run_goes_on_at_its_image_with_any_number_of_hosts(given: dict[str, Any]) -> None:
    whole = given["gone_on"]["whole"]
    for name, part in given["gone_on"]["parts"].items():
        for kind in ("labels", "sums"):
            rest = joined(part[kind])
            assert rest == joined(whole[kind])[30 : 30 + len(rest)], name


@pytest.mark.parametrize("form", ["raw", "decoded"])
def test_the_second_pass_comes_from_the_cache_of_each_host(given: dict[str, Any], form: str) -> None:
    several, one = given["cached"][form]
    assert batches(several) == batches(one)
    assert sorted(examples(several["labels"])[60:]) == sorted(examples(several["labels"])[:60])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone", ["host n1 (rank 1): there is no folder /proc/self/cwd/gone"]),
        ("lacking", ["host n1 (rank 1) has 2 of the 3 train files in ", "train-00002-of-00003 is missing"]),
        (
            "several",
            [
                "host n1 (rank 1) has 1 of the 3 train files",
                "train-00000-of-00003 and 1 more are missing; so it is with n2 (rank 2)",
            ],
        ),
        ("more", ["rank 0 has 2 of the 3 train files that host n1 (rank 1) has", "train-00002-of-00003"]),
        ("shorter", ["train-00001-of-00003 has ", " bytes on host n1 (rank 1), and ", " on rank 0"]),
        ("bitten", ["host n1 (rank 1): ", f"{BITTEN}, record 1: its checksum does not match its bytes"]),
        ("bitten-skip", [f"{BITTEN} has a bad record", "not the same file on host n1 (rank 1) as on rank 0"]),
    ],
)
def test_a_host_with_other_files_than_rank_0_is_named(
    given: dict[str, Any], name: str, says: Iterable[str]
) -> None:
    what, hint = given["wrong"][name]
    for part in says:
        assert part in what
    assert hint


def test_a_host_that_cannot_cache_all_records_is_named(given: dict[str, Any]) -> None:
    assert given["memory"][0].endswith("are free on host n1 (rank 1)")


def test_threads_are_counted_for_each_host_by_its_own_cores(given: dict[str, Any]) -> None:
    assert given["threads"]["describes"].endswith(", 8, 4")
    assert ", 8, 4 private threads of each host" in given["threads"]["says"][-1]
