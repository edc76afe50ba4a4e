"""Copied trees, as folders and tars: they read as the machine they were copied from, and nothing escapes."""

import gzip
import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from gputopo.captures import intake, reading
from gputopo.captures.pci import sysfs
from gputopo.probes import collect, pci
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.captures import samples
from tests.kit import commands
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_tree

SCENARIO = replace(SCENARIOS["dgx1"], cpus=(range(2), range(2, 4)))  # CPUs are most of a tree's files


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return write_tree(SCENARIO, tmp_path / "copied")


def load(path: Path) -> Machine:
    return reading.load([str(path)], read_tree=collect.read_tree)


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_a_folder_gives_the_gpus_and_hops_of_its_tree(copied: Path) -> None:
    machine = load(copied)
    assert machine.source == "sysfs"
    assert machine.driver.status == "not_read"
    assert [gpu.pci_address for gpu in machine.gpus] == [gpu.address for gpu in SCENARIO.gpus]
    assert machine.pci == pci.read_pci(copied)
    assert all(link.hop is not None for link in machine.links)
    assert machine.host.memory_mib == SCENARIO.memory_mib


@pytest.mark.parametrize("mode", ["w", "w:bz2", "w:xz"])
def test_a_tar_reads_as_the_folder_that_it_was_made_of(copied: Path, tmp_path: Path, mode: str) -> None:
    packed = tmp_path / "tree.bin"
    packed.write_bytes(samples.packed(copied, mode))
    assert load(packed) == load(copied)


def test_a_folder_around_the_tree_does_not_matter(copied: Path, tmp_path: Path) -> None:
    assert load(tmp_path) == load(copied)


def test_links_that_begin_at_the_root_stay_in_the_tree(copied: Path, tmp_path: Path) -> None:
    expected = load(copied)
    devices = copied / "sys/bus/pci/devices"
    for link in devices.iterdir():
        inside = os.path.realpath(link).removeprefix(str(copied.resolve()))
        link.unlink()
        link.symlink_to(inside)
    packed = tmp_path / "tree.tgz"
    packed.write_bytes(samples.packed(copied))
    assert load(packed) == expected


def test_a_folder_without_sys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path / "empty")
    with pytest.raises(InputError, match="is a folder"):
        reading.load([str(write_tree(SCENARIO, tmp_path / "tree"))])  # no one to read it


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "sys/../../escaped"])
def test_names_that_lead_outside_are_refused(name: str) -> None:
    data = tar_of([(member("sys/kernel"), b"x"), (member(name), b"x")])
    with pytest.raises(InputError, match="leads outside"), sysfs.unpacked(data, origin="x"):
        pass


def test_links_that_lead_outside_are_not_made(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    data = tar_of(
        [
            (member("sys/class", tarfile.DIRTYPE), b""),
            (member("sys/out", tarfile.SYMTYPE, "../../../../../../../../.." + str(tmp_path)), b""),
            (member("sys/a", tarfile.SYMTYPE, "b/../../c"), b""),
            (member("sys/b", tarfile.SYMTYPE, "."), b""),
            (member("sys/a/planted", tarfile.SYMTYPE, "x"), b""),
            (member("sys/good", tarfile.SYMTYPE, "class"), b""),
            (member("sys/hard", tarfile.LNKTYPE, "sys/class"), b""),
            (member("sys/null", tarfile.CHRTYPE), b""),
        ]
    )
    with sysfs.unpacked(data, origin="x") as root:
        found = {path.name for path in (root / "sys").iterdir()}
        assert {"class", "good"} <= found
        assert not {"out", "hard", "null"} & found
        for path in root.rglob("*"):
            assert Path(os.path.realpath(path)).is_relative_to(root)
        inside = root
    assert not inside.exists()


def test_a_bomb_is_refused_before_it_unfolds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_PLAIN_BYTES", 2**20)
    bomb = gzip.compress(bytes(2**21))
    with pytest.raises(InputError, match="larger than"), sysfs.unpacked(bomb, origin="x"):
        pass


def test_a_hole_counts_as_the_bytes_that_it_would_become(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_MEMBER_BYTES", 100)
    for sizes in ((101,), (60, 60)):
        monkeypatch.setattr(intake, "MAX_TREE_BYTES", 110)
        data = tar_of([(member(f"sys/{place}"), bytes(size)) for place, size in enumerate(sizes)])
        with pytest.raises(InputError, match="larger files than any"), sysfs.unpacked(data, origin="x"):
            pass


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_MEMBERS", 3)
    data = tar_of([(member(f"sys/{number}"), b"") for number in range(4)])
    with pytest.raises(InputError, match="more than 3 files"), sysfs.unpacked(data, origin="x"):
        pass


def test_a_cut_or_foreign_archive_is_refused(copied: Path, tmp_path: Path) -> None:
    whole = samples.packed(copied)
    for name, data in {
        "cut": whole[: len(whole) // 2],
        "text": gzip.compress(b"some text"),
        "other": tar_of([(member("a/b"), b"x")]),
        "head": b"\x1f\x8b",
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError):
            load(tmp_path / name)


def test_inspect_reads_a_copied_tree_from_the_command_line(copied: Path, tmp_path: Path) -> None:
    packed = tmp_path / "tree.tar.gz"
    packed.write_bytes(samples.packed(copied))
    ran = commands.run("-m", "gputopo", "inspect", "--from", str(packed), "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["machine"]["source"] == "sysfs"
