"""What lies in a data folder."""

from pathlib import Path

import pytest

from gputopo.launch.data import (
    Listing,
    count_records,
    find_damage,
    find_data,
    list_files,
    masked_crc,
    require_made_for,
    require_same,
    require_sound,
)
from gputopo.values.errors import ExitCode, InputError, UsageError
from tests.launch.data.records import FOOTER_BYTES, HEADER_BYTES, framed


def shard(folder: Path, name: str, *records: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join(map(framed, records)))
    return path


def test_imagenet_is_known_by_its_files_names(tmp_path: Path) -> None:
    paths = [shard(tmp_path, f"train-0000{number}-of-00002", b"a", b"b") for number in range(2)]
    shard(tmp_path, "validation-00000-of-00001", b"c")
    (tmp_path / "notes.txt").write_text("other files are no matter")
    found = find_data(tmp_path)
    assert (found.name, found.form, found.of("train")) == ("imagenet", "tfrecord", tuple(paths))
    assert (count_records(found, "train"), count_records(found, "validation")) == (4, 1)
    assert found.notices == ()


def test_missing_files_of_a_set_are_reported(tmp_path: Path) -> None:
    shard(tmp_path, "train-00000-of-01024", b"a")
    (notice,) = find_data(tmp_path).notices
    assert "has 1 of 1024 train files" in notice
    shard(tmp_path, "train-00000-of-00002", b"a")
    (notice,) = find_data(tmp_path).notices
    assert "has train files of several sets (-of-00002 and -of-01024)" in notice


def test_a_subset_without_files_is_an_error_when_it_is_needed(tmp_path: Path) -> None:
    shard(tmp_path, "train-00000-of-00001", b"a")
    with pytest.raises(InputError, match="has no validation files"):
        find_data(tmp_path).of("validation")


@pytest.mark.parametrize(
    ("suffix", "form", "inner"), [(".bin", "binary", ""), ("", "python", "cifar-10-batches-py")]
)
def test_cifar_is_known_in_both_versions_and_as_it_unpacks(
    tmp_path: Path, suffix: str, form: str, inner: str
) -> None:
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / f"{name}{suffix}").write_bytes(bytes(3073))
    found = find_data(tmp_path)
    assert (found.name, found.form, found.notices) == ("cifar10", form, ())
    assert [len(found.of("train")), len(found.of("validation"))] == [5, 1]
    assert count_records(found, "train") == (5 if form == "binary" else None)


@pytest.mark.parametrize(
    ("binary", "python", "form"),
    [
        (("data_batch_1.bin",), ("data_batch_1", "data_batch_2", "test_batch"), "python"),
        (("data_batch_1.bin",), ("data_batch_1",), "binary"),
    ],
)
def test_of_both_versions_of_cifar_in_one_folder_the_one_with_more_files_is_read_and_it_is_reported(
    tmp_path: Path, binary: tuple[str, ...], python: tuple[str, ...], form: str
) -> None:
    for name in (*binary, *python):
        (tmp_path / name).write_bytes(bytes(3073))
    found = find_data(tmp_path)
    assert found.form == form
    assert f"has CIFAR-10 in both versions: the {form} files are read." in found.notices[0]
    files = binary if form == "binary" else python
    assert [path.name for path in found.of("train")] == [name for name in files if name.startswith("data")]


def test_an_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"holds no data set but cifar-10-python\.tar\.gz") as error:
        find_data(tmp_path)
    assert error.value.hint == "unpack it there: tar xf cifar-10-python.tar.gz"


def test_a_folder_of_something_else_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "images.tfrecord").write_bytes(framed(b"a"))
    with pytest.raises(InputError, match=r"has no data set with known file names: images\.tfrecord") as error:
        find_data(tmp_path, "imagenet")
    assert "named like train-00000-of-01024 (TFRecords); " in error.value.hint


def test_no_folder_an_empty_one_and_a_file_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        find_data(tmp_path / "none")
    with pytest.raises(InputError, match="is empty") as empty:
        find_data(tmp_path)
    assert "gputopo make-data" in empty.value.hint
    (tmp_path / "file").write_text("a")
    with pytest.raises(InputError, match="is a file, not a folder"):
        find_data(tmp_path / "file")


def test_damage_is_seen_without_reading_the_data(tmp_path: Path) -> None:
    cut = shard(tmp_path, "train-00000-of-00003", b"a" * 50, b"b" * 50)
    cut.write_bytes(cut.read_bytes()[:-1])
    other = shard(tmp_path, "train-00001-of-00003")
    shard(tmp_path, "train-00002-of-00003", b"a")
    assert find_damage(find_data(tmp_path), "train") == [
        (cut, 1, "the file ends within record 1"),
        (other, 0, "the file is empty"),
    ]


def test_of_a_large_folder_only_the_beginnings_are_looked_at(tmp_path: Path) -> None:
    cut = shard(tmp_path, "train-00000-of-00003", b"a" * 50, b"b" * 50)
    cut.write_bytes(cut.read_bytes()[:-1])
    text = tmp_path / "train-00001-of-00003"
    text.write_text("this is a text of some length")
    with (tmp_path / "train-00002-of-00003").open("wb") as large:
        length = (2**31).to_bytes(8, "little")
        large.write(length + masked_crc(length).to_bytes(4, "little"))
        large.truncate(HEADER_BYTES + 2**31 + FOOTER_BYTES)  # it needs no room on the disk
    found = find_data(tmp_path)
    assert find_damage(found, "train") == [(text, 0, "the file is not a TFRecord file")]
    assert count_records(found, "train") is None


def test_a_binary_cifar_file_that_is_cut_is_seen(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(2 * 3073 + 5))
    (tmp_path / "data_batch_2.bin").write_bytes(b"")
    assert [(path.name, record, why) for path, record, why in find_damage(find_data(tmp_path), "train")] == [
        ("data_batch_1.bin", 2, "the file ends within record 2"),
        ("data_batch_2.bin", 0, "the file is empty"),
    ]


def test_a_folder_of_both_data_sets_is_read_as_the_one_that_is_asked_for(tmp_path: Path) -> None:
    shard(tmp_path, "train-00000-of-00001", b"a")
    with pytest.raises(InputError, match="holds imagenet, not cifar10"):
        find_data(tmp_path, "cifar10")
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073))
    assert find_data(tmp_path, "cifar10").name == "cifar10"
    assert find_data(tmp_path, "imagenet").name == find_data(tmp_path).name == "imagenet"


def test_a_bad_record_that_shows_without_tensorflow_is_an_error_before_it_loads(tmp_path: Path) -> None:
    shard(tmp_path, "train-00000-of-00002", b"abc", b"de")
    second = shard(tmp_path, "train-00001-of-00002", b"f")
    require_sound(find_data(tmp_path), "train")
    second.write_bytes(b"")
    with pytest.raises(InputError, match="train-00001-of-00002, record 0: the file is empty") as bad:
        require_sound(find_data(tmp_path), "train")
    assert "--bad-records skip" in bad.value.hint


def test_a_label_of_cifar_that_is_out_of_range_is_an_error_before_tensorflow_loads(tmp_path: Path) -> None:
    file = tmp_path / "data_batch_1.bin"
    file.write_bytes(bytes(3073) + b"\x09" + bytes(3072))
    require_sound(find_data(tmp_path), "train")
    file.write_bytes(bytes(3073) + b"\x0a" + bytes(3072))
    with pytest.raises(InputError, match=r"data_batch_1.bin, record 1: its label 10 is not between 0 and 9"):
        require_sound(find_data(tmp_path), "train")


def test_a_model_of_the_catalogue_is_made_for_one_data_set(tmp_path: Path) -> None:
    shard(tmp_path, "train-00000-of-00001", b"a")
    for model in ("alexnet", "keras:ResNet50", "my:net"):
        require_made_for(find_data(tmp_path), model)
    with pytest.raises(UsageError, match=r"resnet20 is made for cifar10, .* holds imagenet"):
        require_made_for(find_data(tmp_path), "resnet20")


A, B, C, MORE = (f"train-0000{number}-of-00003" for number in range(4))


def test_a_host_that_differs_is_named_with_what_differs() -> None:
    all_files = Listing({A: 10, B: 11, C: 12})
    has, said = "host n2 (rank 2) has", f"{A} is missing"
    cases: list[tuple[Listing, str]] = [
        (Listing({B: 11, C: 12}), f"{has} 2 of the 3 train files in /data: {said}"),
        (Listing({B: 11}), f"{has} 1 of the 3 train files in /data: {A} and 1 more are missing"),
        (
            Listing({A: 10, B: 11, C: 12, MORE: 13}),
            f"rank 0 has 3 of the 4 train files that {has} in /data: {MORE} is missing",
        ),
        (Listing({A: 10, B: 12, C: 12}), f"/data/{B} has 12 bytes on host n2 (rank 2), and 11 on rank 0"),
        (Listing({}, "there is no folder /data"), "host n2 (rank 2): there is no folder /data"),
    ]
    for there, says in cases:
        with pytest.raises(InputError) as refused:
            require_same(Path("/data"), "train", all_files, {"n1 (rank 1)": all_files, "n2 (rank 2)": there})
        assert refused.value.what == says
        assert refused.value.exit_code == ExitCode.USAGE
    others = dict.fromkeys(("n1 (rank 1)", "n2 (rank 2)"), Listing({B: 11, C: 12}))
    with pytest.raises(InputError, match=rf"{said}; the same on n2 \(rank 2\)$"):
        require_same(Path("/data"), "train", all_files, others)


def test_a_listing_has_the_files_of_one_subset_with_their_sizes(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        (tmp_path / name).write_bytes(b"x" * len(name))
    names = ("train-00000-of-00002", "train-00001-of-00002")
    assert list_files(tmp_path, "imagenet", "train") == Listing({name: len(name) for name in names})
    nowhere = tmp_path / "nowhere"
    assert list_files(nowhere, "imagenet", "train") == Listing({}, f"there is no folder {nowhere}")
