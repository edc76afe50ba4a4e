"""Tables, logs of tensorpack, and files that are none of them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_measurements
from gputopo.measurements import RunFolders
from gputopo.report import measured_csv
from gputopo.values.box import Box
from gputopo.values.errors import InputError
from gputopo.values.run.measurement import Measurement
from tests.captures.samples import runs_in
from tests.captures.test_tf_cnn import log

TENSORPACK = """[0731 19:01:07 @logger.py:74] Argv: resnet-multigpu.py --fake-location python --variable-update=replicated --gpu 0,1 --batch 64
[0731 19:01:08 @training.py:50] [DataParallel] Training a model of 2 towers.
[0731 19:01:40 @base.py:283] Epoch 1 (global_step 50) finished, time:30 seconds.
[0731 19:01:56 @base.py:283] Epoch 2 (global_step 100) finished, time:16 seconds.
[0731 19:02:12 @base.py:283] Epoch 3 (global_step 150) finished, time:16 seconds.
"""  # noqa: E501


def test_a_log_of_tensorpack_has_the_median_of_its_epochs_without_the_first() -> None:
    (one,) = runs_in(TENSORPACK)
    assert one.images_per_sec == 50 * 2 * 64 / 16
    assert (one.n_gpus, one.batch_per_gpu, one.model) == (2, 64, "resnet50")
    assert (one.data, one.variable_update) == ("synthetic-python", "replicated")


@pytest.mark.parametrize(
    ("words", "seconds"),
    [("8.21sec", 8.21), ("1 minute 4 seconds", 64)],
)
def test_durations_of_epochs_are_read_as_tensorpack_writes_them(words: str, seconds: float) -> None:
    (one,) = runs_in(TENSORPACK.replace("16 seconds", words))
    assert one.images_per_sec == pytest.approx(50 * 2 * 64 / seconds)


def test_throughput_that_tensorpack_tracked_itself_is_used() -> None:
    tracked = "[0731 19:02:13 @monitor.py:467] Throughput (samples/sec): 415.5\n"
    (one,) = runs_in(TENSORPACK + tracked)
    assert one.images_per_sec == 415.5


def test_without_the_command_a_log_of_tensorpack_has_no_figure_and_says_why() -> None:
    (one,) = runs_in("\n".join(TENSORPACK.splitlines()[2:]))
    assert (one.status, one.images_per_sec) == ("failed", None)
    assert "its log does not show the command" in (one.reason or "")


_texts = st.none() | st.text(
    alphabet=st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20
).filter(lambda text: text.strip() == text)


@given(
    st.builds(
        Measurement,
        source=_texts.filter(bool),
        machine=_texts,
        gpu=_texts,
        model=_texts.filter(bool),
        gpus=st.lists(st.integers(0, 15), max_size=4, unique=True).map(tuple),
        n_gpus=st.integers(1, 16),
        xla=st.none() | st.booleans(),
        batch_per_gpu=st.none() | st.integers(1, 4096),
        images_per_sec=st.floats(0.01, 1e7),
    )
)
def test_a_table_that_was_written_is_read_as_it_was(one: Measurement) -> None:
    assert runs_in(measured_csv(Box(machine=None, runs=(one,), series=(), changes=()))) == (one,)


def test_formulas_are_quoted_and_zero_is_missing() -> None:
    run = Measurement(source="=cmd()", model="@SUM", images_per_sec=1.0)
    text = measured_csv(Box(machine=None, runs=(run,), series=(), changes=()))
    assert "'=cmd()" in text
    assert "'@SUM" in text
    (one,) = runs_in("model,n_gpus,images_per_sec\nresnet50,4,0\n")
    assert (one.status, one.images_per_sec) == ("missing", None)


@pytest.mark.parametrize("row", ["resnet50,four,100", "resnet50,4,nan", "resnet50,4,-1"])
def test_a_value_that_cannot_be_is_refused_with_its_row(row: str) -> None:
    with pytest.raises(InputError, match=r"t\.csv:2"):
        runs_in(f"model,n_gpus,images_per_sec\n{row}\n", "t.csv")


def test_a_folder_is_searched_and_what_is_no_log_is_counted(tmp_path: Path) -> None:
    folder = (
        tmp_path / "i7-GeForce_GTX_1070.logs" / "syn-replicated-fp16-4gpus" / "resnet50-64" / "throughput"
    )
    folder.mkdir(parents=True)
    (folder / "1").write_text(log())
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "binary.log").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "loop").symlink_to(tmp_path)
    ours = RunFolders()
    found = read_measurements([str(tmp_path)], read_run=ours.run, read_json=ours.document)
    assert [(one.precision, one.gpu, one.cpu) for one in found.measurements] == [
        ("fp16", "GeForce GTX 1070", "i7")
    ]
    assert [why for _, why in found.unread] == [f"{tmp_path / 'binary.log'} is a binary file, not a log"]
    assert found.passed == 2


def test_where_the_name_contradicts_the_log_the_log_counts_and_it_is_named() -> None:
    (one,) = runs_in(log(batch="64"), "resnet50-syn-replicated-4gpus-32-1.log")
    assert one.batch_per_gpu == 64
    assert one.conditions == ("the name says batch_per_gpu 32, the log 64",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("\x00\x01\x02" * 100, "binary"),
        ("hello", "not a training log"),
        ("x" * (17 * 2**20), "larger than 16 MiB"),
    ],
)
def test_a_named_file_that_is_no_measurement_is_refused(content: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        runs_in(content)
