"""`--format env|sbatch|docker`: what is printed starts the same run, as a fake program receives it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.launch import DryRun
from gputopo.values import schema
from tests.cli.conftest import ByName, Call

Started = Callable[[str, str], tuple[list[str], dict[str, str]]]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    """Return the arguments and the environment that a program gets when bash runs a script."""

    def run(script: str, program: str) -> tuple[list[str], dict[str, str]]:
        fake = tmp_path / "bin" / program
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" >{tmp_path}/argv\nenv -0 >{tmp_path}/env\n')
        fake.chmod(0o755)
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run(["bash", "-n", str(file)], check=True, timeout=60)
        path = f"{fake.parent}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": path, "IMAGE": "an image"}
        subprocess.run(["bash", str(file)], check=True, env=environ, timeout=60)
        variables = (one.partition("=")[::2] for one in (tmp_path / "env").read_text().split("\0")[:-1])
        return (tmp_path / "argv").read_text().split("\0")[:-1], dict(variables)

    return run


@pytest.mark.parametrize(
    "options",
    [
        "--model alexnet --num-gpus 2 --num-batches 50 --optimizer momentum --nesterov",
        "--model trivial --exclude 0-3 --num-gpus 2 --use_fp16 --ps gpu:spread --batch-size 8 --seed 3",
    ],
)
def test_a_batch_script_starts_the_run_that_was_planned(
    options: str, call: Call, on_scenario: ByName, started: Started
) -> None:
    on_scenario("dgx1")
    script = call("run", *options.split(), "--dry-run", "--format", "sbatch")
    assert script.code == 0
    named = "--gpus" in options or "--exclude" in options
    wanted = 8 if named else int(options.partition("--num-gpus ")[2].split()[0])
    assert f"\n#SBATCH --gres=gpu:{wanted}\n" in script.out
    # 60 steps of alexnet last less than a minute; nothing was published of the other network.
    assert ("\n#SBATCH --time=0:16:00\n" in script.out) == ("alexnet" in options)
    assert ("#SBATCH --exclusive" in script.out) == named
    arguments, environment = started(script.out, "gputopo")
    plans = [
        schema.decode(call(*words, "--dry-run", "--json").out, DryRun, origin="stdout")
        for words in (["run", *options.split()], arguments)
    ]
    planned, again = plans
    assert not named or planned.plan.environment.items() <= environment.items()
    placed = [
        (
            one.plan.choice.gpus,
            one.plan.choice.variable_update,
            one.plan.choice.ps_device,
            one.plan.choice.all_reduce,
        )
        for one in plans
    ]
    assert placed[0] == placed[1]
    assert planned.spec is not None
    assert again.spec is not None
    for field in set(planned.spec.__struct_fields__) - {"asked", "says"}:
        assert getattr(planned.spec, field) == getattr(again.spec, field), field


def test_a_batch_script_gives_a_program_its_words_as_they_were(
    call: Call, on_scenario: ByName, started: Started
) -> None:
    on_scenario("dgx1")
    program = ["python", "a b.py", "--name=it's", "$HOME", "two\nlines", "--", ""]
    script = call("run", "--gpus", "2,3", "--dry-run", "--format", "sbatch", "--", *program).out
    arguments, _ = started(script, "gputopo")
    assert arguments[arguments.index("--") + 1 :] == program
    assert arguments[: arguments.index("--")] == ["run", "--gpus", "2,3", "--require-gpu"]


def test_a_container_gets_the_gpus_by_uuid_and_room_for_nccl(
    call: Call, on_scenario: ByName, started: Started
) -> None:
    on_scenario("dgx1")
    shown = call("run", "--gpus", "6,4", "--dry-run", "--format", "docker", "--", "python", "it's.py").out
    arguments, _ = started(shown, "docker")
    uuids = [f"GPU-00000001-0000-4000-8000-00000000000{gpu}" for gpu in (6, 4)]
    assert arguments[arguments.index("--gpus") + 1] == f'"device={",".join(uuids)}"'
    assert f"CUDA_VISIBLE_DEVICES={','.join(uuids)}" in arguments
    assert {"memlock=-1", "--shm-size=1g"} <= {*arguments}
    assert arguments[-3:] == ["an image", "python", "it's.py"]


def test_in_a_container_the_gpus_are_numbered_anew(call: Call, started: Started) -> None:
    asked = "--model vgg16 --from 7gforce --gpus 3,1 --variable-update parameter_server --ps gpu:3"
    shown = call("run", *asked.split(), "--dry-run", "--format", "docker").out
    arguments, _ = started(shown, "docker")
    assert arguments[arguments.index("--gpus") + 1] == '"device=3,1"'
    assert "CUDA_VISIBLE_DEVICES=1,0" in arguments
    assert arguments[arguments.index("an image") + 1 :] == [
        *("gputopo", "run", "--model", "vgg16", "--gpus", "1,0", "--require-gpu"),
        *("--variable-update", "parameter_server", "--ps", "gpu:1"),
    ]


def test_the_variables_alone_are_those_of_the_plan(call: Call) -> None:
    asked = ("--from", "7gforce", "--gpus", "0,1", "--model", "alexnet")
    of_run = call("run", *asked, "--dry-run", "--format", "env").out
    assert of_run == call("plan", *asked, "--format", "env").out
