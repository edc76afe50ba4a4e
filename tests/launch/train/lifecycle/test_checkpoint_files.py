from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.train import require_files, require_writable
from gputopo.launch.train.lifecycle import (
    CheckpointHeader,
    DiskError,
    FolderError,
    newest_checkpoint,
    prune_checkpoints,
    write_checkpoint,
)
from gputopo.values.errors import ExitCode, InputError, UsageError
from gputopo.values.run.spec import Lifecycle, Optimization, RunSpec
from tests.launch.specs import cpu_spec
from tests.launch.train.small_disk import small_disk

HEADER = CheckpointHeader(
    steps=0, model="resnet20", classes=11, optimizer="momentum", variable_update="replicated", seed=1
)
KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


def header(**changes: Any) -> CheckpointHeader:
    return msgspec.structs.replace(HEADER, **changes)


def saved(folder: Path, steps: int, **changes: Any) -> Any:
    arrays = [
        ("variables/0/conv/kernel", KERNEL + steps),
        ("slots/0/conv/kernel/0", KERNEL * steps),
        ("scale/0", np.array(steps, np.float32)),
    ]
    return write_checkpoint(folder, header(steps=steps, **changes), arrays)


def cut(path: Path, keep: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


def test_the_newest_is_the_one_trained_furthest_whatever_names_and_it_is_read_as_written(
    tmp_path: Path,
) -> None:
    late = saved(tmp_path, 30).path.rename(tmp_path / "checkpoint-00000001.npz")
    saved(tmp_path, 20).path.rename(tmp_path / "checkpoint-00000099.npz")
    found, says = newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.path, found.header.steps, found.header.model, says) == (late, 30, "resnet20", ())
    arrays = dict(found.arrays())
    np.testing.assert_array_equal(arrays["variables/0/conv/kernel"], KERNEL + 30)
    np.testing.assert_array_equal(arrays["slots/0/conv/kernel/0"], KERNEL * 30)
    assert arrays["scale/0"].shape == ()


def test_after_a_truncated_checkpoint_the_one_before_is_taken_and_it_is_reported(tmp_path: Path) -> None:
    good = saved(tmp_path, 10)
    cut(saved(tmp_path, 20).path, 0.999)
    found, says = newest_checkpoint(tmp_path)
    assert found == good
    (said,) = says
    assert "checkpoint-00000020.npz is damaged or cut short" in said
    assert said.endswith("using the checkpoint of step 10")


@given(where=st.floats(0.0, 1.0, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_never_gives_other_numbers(
    tmp_path_factory: pytest.TempPathFactory, where: float, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    good = saved(folder, 10)
    bad = saved(folder, 20)
    data = bytearray(bad.path.read_bytes())
    data[int(where * len(data))] ^= 1 << bit
    bad.path.write_bytes(data)
    try:
        found, _ = newest_checkpoint(folder)
    except InputError:  # the flip changed the version in the header
        return
    assert found is not None
    if found.path == good.path:
        return
    for name, array in found.arrays():  # the bit did not matter: a time stamp, an attribute
        np.testing.assert_array_equal(array, dict(bad.arrays())[name])
    assert found.header == bad.header


def test_no_checkpoint_is_none_and_all_damaged_is_reported(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "absent") == (None, ())
    np.savez(tmp_path / "other.npz", a=KERNEL)  # somebody else's file is none of ours
    assert newest_checkpoint(tmp_path) == (None, ())
    cut(saved(tmp_path, 5).path, 0.5)
    found, says = newest_checkpoint(tmp_path)
    assert found is None
    assert len(says) == 1


def test_the_oldest_go_and_strangers_stay(tmp_path: Path) -> None:
    for steps in (10, 20, 30, 40):
        saved(tmp_path, steps)
    np.savez(tmp_path / "other.npz", a=KERNEL)
    (tmp_path / ".checkpoint-00000050.npz.123").write_bytes(b"killed in the middle")
    assert [path.name for path in prune_checkpoints(tmp_path, 2)] == [
        "checkpoint-00000020.npz",
        "checkpoint-00000010.npz",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-00000030.npz",
        "checkpoint-00000040.npz",
        "other.npz",
    ]


def lost(folder: Path, steps: int) -> Any:
    return write_checkpoint(
        folder, header(steps=steps), [("variables/0/conv/kernel", np.full_like(KERNEL, np.inf))]
    )


def test_checkpoints_with_numbers_that_are_not_finite_replace_no_good_one(tmp_path: Path) -> None:
    good = [saved(tmp_path, steps) for steps in (10, 20)]
    bad = [lost(tmp_path, steps) for steps in (30, 40, 50)]
    assert [one.header.finite for one in (*good, *bad)] == [True] * 2 + [False] * 3
    assert prune_checkpoints(tmp_path, 2) == (bad[0].path,)
    assert all(one.path.exists() for one in good)
    found, remarks = newest_checkpoint(tmp_path)
    assert found == good[1]
    assert [remark.partition("npz ")[2] for remark in remarks] == [
        "has numbers that are not finite; using the checkpoint of step 20"
    ] * 2


def test_a_full_disk_is_a_clear_error_and_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    good = saved(tmp_path, 10)
    with small_disk(700), pytest.raises(DiskError) as reported:
        saved(tmp_path, 20)
    assert reported.value.exit_code == ExitCode.HARDWARE
    assert "checkpoint-00000020.npz" in reported.value.what
    assert "free some space" in reported.value.hint
    assert [path.name for path in tmp_path.iterdir()] == [good.path.name]
    assert newest_checkpoint(tmp_path) == (good, ())


def test_what_cannot_be_written_is_named_with_the_option_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=f"cannot write the trace in {tmp_path}") as reported:
        require_writable(tmp_path / "file" / "kept", "--trace", "--output")
    assert reported.value.exit_code == ExitCode.USAGE
    assert reported.value.kind == "trace"
    assert reported.value.hint == "use a writable folder with --output"


def spec_of(folder: Path, **changes: Any) -> RunSpec:
    """Return a run of the checkpoints that `saved` writes."""
    lifecycle = {name: changes.pop(name) for name in ("resume", "resume_or_start") if name in changes}
    spec = cpu_spec(
        model="resnet20",
        variable_update="replicated",
        optimization=Optimization(optimizer="momentum"),
        lifecycle=Lifecycle(checkpoints=str(folder), **lifecycle),
    )
    return msgspec.structs.replace(spec, **changes)


def test_a_run_begins_only_where_the_folder_is_as_it_was_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    require_files(spec_of(folder))
    require_files(spec_of(folder, resume_or_start=True))
    with pytest.raises(InputError, match=r"there is no checkpoint in .*kept to resume") as missing:
        require_files(spec_of(folder, resume=True))
    assert "--resume auto" in missing.value.hint
    saved(folder, 10)
    require_files(spec_of(folder, resume=True))
    require_files(spec_of(folder, resume_or_start=True))
    with pytest.raises(UsageError, match="already holds a checkpoint of step 10"):
        require_files(spec_of(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "alexnet"}, "the model resnet20, not alexnet; the number of classes 11, not 1001"),
        ({"optimization": Optimization(optimizer="adam")}, "the optimizer momentum, not adam"),
        ({"variable_update": "independent"}, "one set of variables, not 2 separate trainings"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_its_header_alone(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    saved(tmp_path, 10)
    with pytest.raises(InputError, match=words) as refused:
        require_files(spec_of(tmp_path, resume=True, **changes))
    assert "(6 parameters)" in refused.value.what


def test_modes_with_one_set_of_variables_continue_each_other_and_independent_towers_only_as_many(
    tmp_path: Path,
) -> None:
    saved(tmp_path, 10)
    require_files(spec_of(tmp_path, resume=True, variable_update="parameter_server", seed=5))
    saved(tmp_path, 20, variable_update="independent", places=3)
    with pytest.raises(InputError, match="3 separate trainings, not 2 separate trainings"):
        require_files(spec_of(tmp_path, resume=True, variable_update="independent"))


def test_a_folder_of_damaged_checkpoints_alone_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    cut(saved(tmp_path, 10).path, 0.5)
    require_files(spec_of(tmp_path))  # the worker may begin anew
    for task in ("train", "eval"):
        with pytest.raises(InputError, match=r"damaged or cut short .* no other checkpoint"):
            require_files(spec_of(tmp_path, resume=True, task=task))


def test_an_evaluation_needs_a_checkpoint_of_its_model_however_it_was_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no checkpoint in"):
        require_files(spec_of(tmp_path, task="eval"))
    saved(tmp_path, 10)
    require_files(spec_of(tmp_path, task="eval", optimization=Optimization(optimizer="adam")))
    with pytest.raises(InputError, match="the model resnet20, not vgg11"):
        require_files(spec_of(tmp_path, task="eval", model="vgg11"))
