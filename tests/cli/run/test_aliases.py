"""Flags of other programs and other spellings, which become options of `gputopo run`."""

from collections.abc import Callable
from typing import Any

import pytest

from gputopo import launch
from gputopo.values.errors import UsageError
from gputopo.values.option import Given
from tests.cli.conftest import Call

Read = Callable[[str], dict[str, Any]]


class RefusedError(Exception):
    """The two lines of a refusal."""


@pytest.fixture
def read(call: Call, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Returns the options of a command line that a job is made of. Raises RefusedError."""
    made: list[dict[str, Any]] = []

    def job(model: str | None, placement: Given, training: Given, program: tuple[str, ...]) -> None:
        made.append({**placement.typed, **training.typed, "program": program})
        raise UsageError("this job was only read", "it is not run")

    def read(line: str) -> dict[str, Any]:
        made.clear()
        done = call("run", *line.split())
        if not made:
            raise RefusedError(done.err)
        return made[0]

    monkeypatch.setitem(vars(launch), "Job", job)
    return read


def test_flags_of_other_programs_become_options_that_mean_the_same(read: Read) -> None:
    cases: list[tuple[str, str]] = [
        ("--batch_size=64 --num_gpus 2", "--batch-size=64 --num-gpus 2"),
        ("--use_fp16", "--precision fp16"),
        ("--json --forward_only=true", "--format json --task forward"),
        ("--optimizer=adam --adam_beta1=0.9 --method kuza55", "--optimizer=adam --strategy kuza55"),
        ("--use_fp16=false", ""),
        ("--nouse_fp16", ""),
        ("--all_reduce_spec=xring#2", "--all-reduce=xring#2"),
        ("--variable_update=replicated --use_nccl", "--variable-update=replicated --all-reduce nccl"),
        ("--variable_update=parameter_server --nouse_nccl", "--variable-update=parameter_server"),
        ("--variable_consistency=relaxed", "--variable-consistency=relaxed"),
        ("--staged_vars --nostaged_vars", ""),
        ("--nostaged_vars --staged_vars", "--staged-vars"),
        ("--local_parameter_device gpu", "--ps gpu:spread"),
        (
            "--variable_update=replicated --local_parameter_device=gpu",
            "--variable-update=replicated --all-reduce psgpu",
        ),
        (
            "--variable_update replicated --local_parameter_device=cpu --all_reduce_spec=xring",
            "--variable-update replicated --all-reduce xring",
        ),
        ("--cross_replica_sync=false", "--async"),
        ("--cross_replica_sync", ""),
        ("--xla_compile", "--xla"),
        ("--hierarchical_copy", "--all-reduce hierarchical"),
        ("--fp16_enable_auto_loss_scale", "--loss-scale auto"),
        ("--fp16_loss_scale=64", "--loss-scale=64"),
        ("--train_dir=/kept --save_model_steps=5", "--checkpoints=/kept --checkpoint-steps=5"),
        ("--init_learning_rate=0.1", "--learning-rate=0.1"),
        ("--fake-location python-dataset", "--data-source python --feed dataset"),
        ("--distortions=False", ""),
        ("--datasets_use_caching", "--cache raw"),
        ("--use_fp16 --precision fp16", "--precision fp16 --precision fp16"),
        ("--batch_size 4 --batch_size 8", "--batch-size 4 --batch-size 8"),  # the last counts, as everywhere
        ("--tf_random_seed=3", "--seed=3"),
    ]
    for theirs, ours in cases:
        assert read(theirs) == read(ours)


def test_flags_of_hosts_become_options_that_mean_the_same(call: Call) -> None:
    for line in ("--job_name=worker --worker_hosts=a:5000,b:5000 --task_index=5", "--nnodes 2 --node_rank 5"):
        assert call("run", "--model", "trivial", *line.split()).err.startswith("gputopo: rank 5 is outside")


def test_what_belongs_to_a_program_is_left_alone(read: Read) -> None:
    words = ["python", "train.py", "--use_fp16", "--batch_size=3"]
    assert read(f"--num_gpus=2 -- {' '.join(words)}") == {"num_gpus": 2, "program": tuple(words)}


def test_two_flags_that_are_one_option_here_must_agree(read: Read) -> None:
    cases: list[tuple[str, tuple[str, ...], str]] = [
        ("--use_nccl --hierarchical_copy", ("--use-nccl", "--hierarchical-copy"), "--all-reduce"),
        ("--all_reduce_spec xring --use_nccl", ("--all-reduce-spec", "--use-nccl"), "--all-reduce"),
        ("--fp16_loss_scale=64 --fp16_enable_auto_loss_scale", ("--fp16-loss-scale",), "--loss-scale"),
        ("--precision bf16 --use_fp16", ("--precision", "--use-fp16"), "--precision"),
        ("--local_parameter_device cpu --ps gpu:1", ("--local-parameter-device", "--ps"), "--ps"),
        ("--fake-location=python --feed staged", ("--fake-location", "--feed"), "--feed"),
        ("--train_dir=/a --checkpoints /b", ("--train-dir", "--checkpoints"), "--checkpoints"),
    ]
    for line, flags, option in cases:
        with pytest.raises(RefusedError, match=f"both mean {option}, with") as refused:
            read(line)
        assert all(flag in str(refused.value) for flag in flags)


def test_a_switch_that_is_off_goes_with_every_other_value(read: Read) -> None:
    cases: list[tuple[str, str]] = [
        ("--precision bf16 --nouse_fp16", "--precision bf16"),
        ("--nouse_fp16 --use_fp16 --precision fp16", "--precision fp16 --precision fp16"),
        ("--use_fp16 --nouse_fp16 --precision bf16", "--precision bf16"),
        ("--nostaged_vars --staged_vars --staged_vars=false --async", "--async"),
        ("--all_reduce_spec=xring --nouse_nccl", "--all-reduce=xring"),
    ]
    for line, ours in cases:
        assert read(line) == read(ours)


def test_what_gputopo_does_not_have_is_named_with_what_to_do(read: Read) -> None:
    for line in [
        "--trace_file=/x",
        "--job_name ps",
        "--fp16_vars",
        "--nofreeze_when_forward_only",
        "--use_datasets=false",
        "--piecewise_learning_rate_schedule=0.1;10;0.01",
    ]:
        with pytest.raises(RefusedError, match=r"gputopo does not have\n  ."):
            read(line)
