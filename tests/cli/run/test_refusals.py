"""What `gputopo run` refuses before anything starts: two lines, the right exit code, nothing left behind."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import ByName, Call


def test_a_folder_that_holds_a_run_is_refused_before_anything_starts(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    (tmp_path / "events.jsonl").write_text("")
    done = call("run", "--model", "alexnet", "--output", tmp_path)
    assert (done.code, len(done.err.splitlines())) == (2, 2)
    assert "already holds a run" in done.err


@pytest.mark.parametrize("what", [("--model", "alexnet"), ("--", "true")])
def test_a_broken_driver_is_exit_code_3_with_the_finding(
    call: Call, with_broken_driver: None, own_home: Path, what: tuple[str, ...]
) -> None:
    done = call("run", *what)
    assert done.code == 3
    assert "no GPU of this machine can be used" in done.err
    assert not own_home.exists()


@pytest.mark.parametrize("what", [("run", "--model", "alexnet"), ("inspect",)])
def test_an_error_that_implies_a_device_outranks_a_bus_that_shows_none(
    call: Call, with_hidden_bus: None, what: tuple[str, ...]
) -> None:
    done = call(*what)
    assert done.code == 3
    assert "driver library and kernel module have different versions" in done.out + done.err
    assert ("--cpu uses CPU devices" in done.err) == (what[0] == "run")


def test_a_required_gpu_that_is_absent_is_exit_code_3(call: Call, without_gpu: None, own_home: Path) -> None:
    assert call("run", "--require-gpu", "--", "true").code == 3
    assert not own_home.exists()


def test_modes_of_several_hosts_are_what_they_are_here_with_a_word(call: Call, without_gpu: None) -> None:
    cases: list[tuple[str, str]] = [
        ("distributed_replicated", "parameter_server"),
        ("distributed_all_reduce", "replicated"),
        ("collective_all_reduce", "replicated"),
        ("horovod", "replicated"),
    ]
    for mode, here in cases:
        done = call("run", "--model", "alexnet", "--variable_update", mode, "--dry-run", "--json")
        assert done.code == 0
        assert json.loads(done.out)["spec"]["variable_update"] == here
        assert f"--variable-update {mode} is {here} here" in done.err


def test_a_folder_without_records_is_refused_before_tensorflow_starts(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    done = call("run", "--model", "resnet20", "--data-dir", tmp_path)
    assert done.code == 2
    assert str(tmp_path) in done.err
    assert len(done.err.splitlines()) == 2


def test_a_batch_whose_examples_alone_are_larger_than_memory_is_refused_before_anything_starts(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    folder = tmp_path / "out"
    done = call("run", "--model", "resnet20", "--batch-size", 2**31 - 1, "--output", folder)
    assert (done.code, done.out, len(done.err.splitlines())) == (3, "", 2)
    assert "examples of a step need" in done.err
    assert not folder.exists()
