"""Copied trees: they read as the machine they were copied from."""

from dataclasses import replace
from pathlib import Path

import pytest

from gputopo.captures import load
from gputopo.probes import read_tree
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_tree

SCENARIO = replace(SCENARIOS["dgx1"], cpus=(range(2), range(2, 4)))  # CPUs are most of a tree's files


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return write_tree(SCENARIO, tmp_path / "copied")


def tree(path: Path) -> Machine:
    return load([str(path)], read_tree=read_tree)


def test_a_folder_gives_the_gpus_and_hops_of_its_tree(copied: Path) -> None:
    machine = tree(copied)
    assert machine.source == "sysfs"
    assert machine.driver.status == "not_read"
    assert [gpu.pci_address for gpu in machine.gpus] == [gpu.address for gpu in SCENARIO.gpus]
    assert {gpu.address for gpu in SCENARIO.gpus} < {node.address for node in machine.pci}
    assert all(link.hop is not None for link in machine.links)
    assert machine.host.memory_mib == SCENARIO.memory_mib


def test_a_folder_around_the_tree_does_not_matter(copied: Path, tmp_path: Path) -> None:
    assert tree(tmp_path) == tree(copied)


def test_a_folder_without_sys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        tree(tmp_path / "empty")
    with pytest.raises(InputError, match="is a folder"):
        load([str(write_tree(SCENARIO, tmp_path / "tree"))])  # no one to read it
