"""The input over several hosts, each of which reads its own rows: here servers with separate folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gputopo.values import schema
from tests.launch.forks import run_program
from tests.launch.train.hosts import serving, spec_of
from tests.launch.train.inputs import folders

pytestmark = pytest.mark.tensorflow

HOSTS = 2
FILE = "train-00001-of-00003"


def write(place: Path, rank: int) -> None:
    """Write the folders of a host."""
    folders.damaged(place / "picture", "picture")
    folders.damaged(place / "missing", "none")
    folders.damaged(place / "bitten", "checksum" if rank else "none")
    if rank:
        (place / "missing" / FILE).unlink()


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


def joined(values: Any) -> list[Any]:
    return [one for step in values for tower in step for one in tower]


def test_an_evaluation_has_each_example_once_and_in_the_rows_of_one_host(given: dict[str, Any]) -> None:
    found = given["evaluations"]
    for kind in ("labels", "sums"):
        assert found["several"][kind] == found["one"][kind]
    for name, labels in (("several", range(1, 7)), ("cifar", range(7))):
        assert sorted(examples(found[name]["labels"])) == [*labels]
        assert found[name]["images"] == len(labels)


def test_a_run_goes_on_at_its_image_with_any_number_of_hosts(given: dict[str, Any]) -> None:
    for kind in ("labels", "sums"):
        whole, rest = (joined(given["gone_on"][part][kind]) for part in ("whole", "rest"))
        assert rest[:30] == whole[30:]


def test_the_second_pass_comes_from_the_cache_of_each_host(given: dict[str, Any]) -> None:
    whole, rest = (joined(given["gone_on"][part]["labels"]) for part in ("whole", "rest"))
    assert sorted(rest[30:]) == sorted(whole)


def test_a_host_with_other_files_than_rank_0_is_named(given: dict[str, Any]) -> None:
    cases = {
        "missing": "host n1 (rank 1) has 2 of the 3 train files",
        "bitten": "the input cannot be read: host n1 (rank 1) cannot read its rows",
        "picture": f"{FILE}, record 1: it has no image that can be decoded",
    }
    for name, says in cases.items():
        what, hint = given["wrong"][name]
        assert says in what
        assert hint


def test_threads_are_counted_for_each_host_by_its_own_cores(given: dict[str, Any]) -> None:
    assert given["threads"]["describes"].endswith(", 8")
    assert ", 8 private threads of each host" in given["threads"]["says"][-1]
