"""Small data folders: written completely, or not at all."""

import os
import re
import shlex
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gputopo import cli
from gputopo.launch.data import DataRequest, find_data, make_data, read_cifar
from gputopo.launch.train.lifecycle import DiskError
from gputopo.values.errors import InputError
from tests.launch.train.small_disk import small_disk


@pytest.mark.tensorflow
def test_imagenet_folders_have_the_files_and_counts_that_were_asked_for(found: dict[str, Any]) -> None:
    made = found["imagenet"]
    assert made["counts"] == [36, 4]
    assert made["names"] == [f"train-0000{n}-of-00003" for n in range(3)]
    assert made["records"] == [12, 12, 12]
    assert made["counted"] == [36, 4]
    assert made["damage"] == []
    assert made["bytes"][0] == made["bytes"][1]


@pytest.mark.tensorflow
def test_records_have_the_fields_of_the_data_sets_builder(found: dict[str, Any]) -> None:
    height, width, _ = found["imagenet"]["shape"]
    assert min(height, width) == 24
    assert found["imagenet"]["fields"] == {
        "image/height": height,
        "image/width": width,
        "image/colorspace": "RGB",
        "image/channels": 3,
        "image/class/label": 1,
        "image/class/synset": "n00000001",
        "image/class/text": "class 1",
        **{f"image/object/bbox/{side}": pytest.approx(0.2) for side in ("xmin", "ymin")},
        **{f"image/object/bbox/{side}": pytest.approx(0.8) for side in ("xmax", "ymax")},
        "image/object/bbox/label": 1,
        "image/format": "JPEG",
        "image/filename": "drawn.JPEG",
    }


@pytest.mark.tensorflow
def test_records_of_another_schema_are_reported_by_the_field_that_differs(found: dict[str, Any]) -> None:
    cases: list[tuple[str, str]] = [
        ("no message", "it is not an Example message"),
        ("no picture", "it has no image/encoded, but image/class/label, image/encodes, "),
        ("no label", "it has no label"),
        ("label of text", "its image/class/label is not one whole number"),
        ("two labels", "its image/class/label is not one whole number"),
        ("odd boxes", "its boxes are incomplete"),
    ]
    for kind, why in cases:
        assert found["wrong"][kind].startswith(why), kind
    assert [found["wrong"][kind] for kind in ("sound", "boxes outside")] == [3, 3], "the label"


def test_cifar_folders_have_five_training_files_and_a_test_file(tmp_path: Path) -> None:
    make_data(tmp_path / "data", DataRequest(name="cifar10", count=60, side=40))
    found = find_data(tmp_path / "data")
    assert len(found.of("train")) == 5
    files = [read_cifar(path) for path in found.of("train")]
    images = np.concatenate([file.images for file in files])
    assert images.shape == (54, 3072)
    assert {label for file in files for label in file.labels.tolist()} == set(range(10))
    assert images.std() > 20
    names = (tmp_path / "data" / "batches.meta.txt").read_text().splitlines()
    assert (len(names), names[0], names[-1]) == (10, "airplane", "truck")


@pytest.mark.tensorflow
def test_the_seed_gives_the_pictures(found: dict[str, Any]) -> None:
    same, other = found["seeds"]
    assert same
    assert not other


@pytest.mark.tensorflow
def test_a_full_disk_leaves_nothing_of_imagenet_behind(found: dict[str, Any]) -> None:
    what, code, left = found["full_disk"]
    assert "nothing was left behind" in what
    assert (code, left) == (3, [])


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    request = DataRequest(name="cifar10", count=100, side=16)
    (tmp_path / "empty").mkdir()
    for place in ("new/and/deeper", "empty"):
        with small_disk(20_000), pytest.raises(DiskError, match="nothing was left behind") as full:
            make_data(tmp_path / place, request)
        assert full.value.exit_code == 3
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_an_empty_folder_is_filled_and_stays_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    make_data(tmp_path / "link", DataRequest(name="cifar10", count=12, side=16))
    assert find_data(tmp_path / "real").name == "cifar10"
    assert not [path for path in (tmp_path / "real").iterdir() if path.name.startswith(".")]


# The signal may arrive while a file is closed, where Python only warns of an exception.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_command_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    writing = threading.Event()

    def terminate() -> None:
        while not list(tmp_path.glob("new/.unfinished.*/data_batch_1.bin")):
            assert not writing.wait(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        terminated = pool.submit(terminate)
        arguments = ["--side", "16", "--data-name", "cifar10", "--images", "3000"]
        try:
            code = cli.run_command(["make-data", str(tmp_path / "new" / "data"), *arguments])
        finally:
            writing.set()
        terminated.result()
    assert code == 143
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "keep").write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        make_data(tmp_path, DataRequest(name="imagenet", count=4, side=16))
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_the_command_writes_a_folder_and_shows_what_to_do_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "new" / "my data"
    arguments = ["make-data", str(place), "--data-name", "cifar10", "--images", "20", "--side", "16"]
    assert cli.run_command(arguments) == 0
    out = capsys.readouterr().out
    assert re.search(rf"{place}: 18 images for training and 2 for validation, [\d.]+ K\w+\.", out)
    command = out.splitlines()[-1].partition(": ")[2]
    assert shlex.split(command)[-2:] == ["--data-dir", str(place)], "it can be pasted"
    assert find_data(place).name == "cifar10"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--images", "1"],
        ["--data-name", "coco"],
        ["--images", "9" * 50],
        ["--data-name", "cifar10", "--files", "2"],
    ],
)
def test_the_command_refuses_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.run_command(["make-data", str(tmp_path / "data"), *arguments]) == 2
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "data").exists()
