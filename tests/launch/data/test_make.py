"""Small data folders: written completely, or not at all."""

import os
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gputopo import cli
from gputopo.launch.data import cifar_files
from gputopo.launch.data import folder as data_folder
from gputopo.launch.data import make as pictures
from gputopo.launch.data.make import Request, make
from gputopo.launch.train.lifecycle.checkpoint_files import DiskError
from gputopo.report import units
from gputopo.values.errors import InputError
from tests.launch.data.disks import small_disk


@pytest.mark.tensorflow
def test_imagenet_folders_have_the_files_and_counts_that_were_asked_for(found: dict[str, Any]) -> None:
    made = found["imagenet"]
    assert made["counts"] == [36, 4]
    assert made["names"] == [f"train-0000{n}-of-00003" for n in range(3)]
    assert made["records"] == [12, 12, 12]
    assert made["damage"] == []
    assert made["validation"] == 4
    assert made["bytes"][0] == made["bytes"][1]


def test_cifar_folders_have_five_training_files_and_a_test_file(tmp_path: Path) -> None:
    make(tmp_path / "data", Request(name="cifar10", count=60, side=40))
    found = data_folder.find(tmp_path / "data")
    assert len(found.of("train")) == 5
    images, labels = cifar_files.joined(cifar_files.read(path) for path in found.of("train"))
    assert images.shape == (54, 3072)
    assert set(labels.tolist()) == set(range(10))
    assert images.std() > 20


@pytest.mark.tensorflow
def test_the_seed_gives_the_pictures(found: dict[str, Any]) -> None:
    same, other = found["seeds"]
    assert same
    assert not other


def test_drawn_pictures_of_a_class_are_more_alike_than_those_of_others() -> None:
    def small(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return pictures.resized(pictures.drawn(number, classes=3, side=32, seed=1).pixels, 8, 8).astype(float)

    drawn = [
        (pictures.drawn(number, classes=3, side=32, seed=1).klass, small(number)) for number in range(12)
    ]
    apart = [(a == b, np.abs(x - y).mean()) for i, (a, x) in enumerate(drawn) for b, y in drawn[:i]]
    same = np.mean([far for alike, far in apart if alike])
    others = np.mean([far for alike, far in apart if not alike])
    assert same < others


def test_images_of_a_folder_keep_their_bytes_if_they_are_jpeg(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
    Image.new("RGB", (20, 30), (9, 8, 7)).save(tmp_path / "images" / "cat" / "a.jpg", quality=70)
    Image.new("L", (20, 30), 99).save(tmp_path / "images" / "dog" / "b.png")
    files = pictures.listed(tmp_path / "images")
    assert [(path.name, klass, name) for path, klass, name in files] == [
        ("a.jpg", 0, "cat"),
        ("b.png", 1, "dog"),
    ]
    cat, dog = pictures.read(files)
    assert cat.encoded() == (tmp_path / "images" / "cat" / "a.jpg").read_bytes()
    assert dog.pixels.shape == (30, 20, 3)
    assert dog.encoded()[:2] == b"\xff\xd8"


def test_grey_of_16_bits_keeps_its_range(tmp_path: Path) -> None:
    grey = np.array([[0, 257, 32_896, 65_535]], np.uint16)
    for name in ("a.png", "b.tif"):
        Image.fromarray(grey).save(tmp_path / name)
    for kept in pictures.read(pictures.listed(tmp_path)):
        assert kept.pixels.tolist() == [[[value] * 3 for value in (0, 1, 128, 255)]]


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_of_no_known_range_are_refused_by_the_name_of_the_file(
    tmp_path: Path, kind: type[np.number[Any]]
) -> None:
    Image.fromarray(np.ones((2, 2), kind)).save(tmp_path / "odd.tif")
    with pytest.raises(InputError, match=r"odd\.tif cannot be read as an image"):
        list(pictures.read(pictures.listed(tmp_path)))


def test_hidden_files_and_folders_are_no_pictures_and_no_classes(tmp_path: Path) -> None:
    hidden = (".ipynb_checkpoints/a.png", ".a.png", "cat/.thumbnails/a.png", "cat/._a.png")
    for name in (*hidden, "cat/a.png", "dog/a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    found = [(str(path.relative_to(tmp_path)), klass) for path, klass, _ in pictures.listed(tmp_path)]
    assert found == [("cat/a.png", 0), ("dog/a.png", 1)]


def test_cifar_folders_name_the_classes_that_they_hold(tmp_path: Path) -> None:
    odd = os.fsdecode(b"owl \xff")
    for name in ("cat", "dog", odd):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / name / "a.png")
    make(tmp_path / "given", Request(name="cifar10", images=tmp_path / "images"))
    make(tmp_path / "drawn", Request(name="cifar10", count=20, side=16))
    names = {place: (tmp_path / place / "batches.meta.txt").read_bytes() for place in ("given", "drawn")}
    assert names["given"] == b"cat\ndog\nowl \xff\n"
    assert names["drawn"].decode().splitlines() == list(cifar_files.NAMES)


@pytest.mark.tensorflow
def test_a_full_disk_leaves_nothing_of_imagenet_behind(found: dict[str, Any]) -> None:
    errors, left = found["full_disk"]["errors"], found["full_disk"]["left"]
    assert [code for _, code in errors] == [3, 3, 3]
    assert all("nothing was left behind" in what for what, _ in errors)
    assert left == ["empty"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    request = Request(name="cifar10", count=100, side=16)
    (tmp_path / "empty").mkdir()
    for place in ("data", "new/and/deeper", "empty"):
        with small_disk(20_000), pytest.raises(DiskError, match="nothing was left behind") as full:
            make(tmp_path / place, request)
        assert full.value.exit_code == 3
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_an_empty_folder_is_filled_and_stays_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    before = (tmp_path / "real").stat().st_ino
    make(tmp_path / "link", Request(name="cifar10", count=12, side=16))
    assert (tmp_path / "real").stat().st_ino == before
    assert data_folder.find(tmp_path / "real").name == "cifar10"
    assert not [path for path in (tmp_path / "real").iterdir() if path.name.startswith(".")]


def test_a_command_that_is_terminated_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = pictures.drawn

    def terminated(number: int, **settings: int) -> pictures.Picture:
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(number, **settings)

    monkeypatch.setattr(pictures, "drawn", terminated)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        cli.run_command(
            ["make-data", str(tmp_path / "new" / "data"), "--side", "16", "--data-name", "cifar10"]
        )
    assert ended.value.code == 143
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_picture_that_is_none_leaves_nothing_behind_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (20, 30)).save(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "b.jpg").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"b\.jpg cannot be read as an image"):
        make(tmp_path / "data", Request(name="cifar10", images=tmp_path / "images"))
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "keep").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        make(tmp_path, Request(name="imagenet", count=4, side=16))
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_too_many_classes_for_a_data_set_are_refused(tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / "images" / str(number)).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / str(number) / "a.png")
    with pytest.raises(InputError, match="has 11 classes, cifar10 has 10 at most"):
        make(tmp_path / "data", Request(name="cifar10", images=tmp_path / "images"))


@pytest.mark.tensorflow
def test_names_of_no_encoding_and_links_are_read(found: dict[str, Any]) -> None:
    assert found["odd_names"] == [2, True, True]


def test_a_folder_that_may_not_be_looked_into_is_named_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a.png")
    plain = os.scandir

    def locked(path: str) -> object:  # root may read everything, and tests may be root's
        if os.fspath(path).endswith("dog"):
            raise PermissionError(13, "Permission denied", path)
        return plain(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(InputError, match="dog cannot be read: Permission denied"):
        pictures.listed(tmp_path)


def test_a_picture_that_no_jpeg_can_hold_is_named(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name, width in (("a.png", 8), ("long.png", 65_501)):
        Image.new("L", (width, 1)).save(tmp_path / "images" / name)
    with pytest.raises(InputError, match=r"long\.png has a side of over 65500 pixels"):
        [picture.encoded() for picture in pictures.read(pictures.listed(tmp_path / "images"))]


@pytest.mark.parametrize(("images", "why"), [("none", "there is no folder"), ("empty", "holds no image")])
def test_a_folder_without_images_is_refused(tmp_path: Path, images: str, why: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=why):
        make(tmp_path / "data", Request(name="imagenet", images=tmp_path / images))


def test_the_command_writes_a_folder_and_shows_what_to_do_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "new" / "data"
    arguments = ["make-data", str(place), "--data-name", "cifar10", "--images", "20", "--side", "16"]
    assert cli.run_command(arguments) == 0
    out = capsys.readouterr().out
    size = units.size(sum(file.stat().st_size for file in place.iterdir()))
    assert f"{place}: 18 images to train with and 2 for validation, {size}." in out
    assert f"--data-dir {place}" in out
    assert data_folder.find(place).name == "cifar10"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--images", "1"],
        ["--files", "0"],
        ["--side", "7"],
        ["--data-name", "coco"],
        ["--from", "/no/folder"],
        ["--seed", "9" * 50],
        ["--images", "9" * 50],
        ["--from", ".", "--images", "4"],
        ["--from", ".", "--side", "16"],
        ["--data-name", "cifar10", "--files", "2"],
    ],
)
def test_the_command_refuses_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.run_command(["make-data", str(tmp_path / "data"), *arguments]) == 2
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "data").exists()


def test_the_command_that_trains_with_it_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my data"
    size = ["--data-name", "cifar10", "--images", "20", "--side", "16"]
    assert cli.run_command(["make-data", str(folder), *size]) == 0
    command = capsys.readouterr().out.splitlines()[-1].partition(": ")[2]
    assert shlex.split(command)[-2:] == ["--data-dir", str(folder)]


def test_a_working_folder_that_is_gone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.run_command(["make-data", "data"]) == 2
    assert "cannot be found: No such file or directory" in capsys.readouterr().err
