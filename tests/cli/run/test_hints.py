"""What a refusal of options advises is accepted: each alternative that its hint names."""

import keyword
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch import Job, Site, Target, runnable
from gputopo.values.errors import GputopoError
from gputopo.values.machine import Machine
from gputopo.values.option import given_of, options_of
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.spec import RunSpec
from tests.launch.data.records import framed

# Each asks for nothing else that would be refused. DIR is a folder.
REFUSED = """
--strategy kuza55 --task forward
--strategy kuza55 --variable-update replicated
--strategy mirrored --ps cpu
--strategy mirrored --variable-update replicated
--strategy mirrored --variable-consistency relaxed
--strategy kuza55 --ps gpu:spread
--task forward --drill slow-gpu=1:0.9
--num-batches 4 --drill nan@5
--variable-update replicated --drill slow-weights=1:0.9
--strategy kuza55 --num-gpus 2 --batch-size 4,8
--strategy mirrored:nccl
--strategy mirrored:hierarchical --num-gpus 3
--strategy one-device
--task eval
--task input --data-source cpu --checkpoints DIR --checkpoint-steps 5 --keep-checkpoints 2 --resume
--task input
--momentum 0.5
--staged-vars --gradient-repacking 2
--staged-vars --variable-update replicated
--staged-vars --async
--variable-consistency relaxed --variable-update parameter_server
--all-reduce ring --variable-update independent
--agg-small-grads-max-group 3 --variable-update replicated
--loss-scale 8
--precision fp16 --loss-scale auto --staged-vars
--gpu-memory-limit 1024
--learning-rate-schedule model
--distortions
--model mlp --data-dir DIR
--model keras:ResNet50 --data-name imagenet
--model resnet20 --data-name imagenet --data-dir DIR
--data-dir DIR --data-source cpu
--prefetch 3
--feed queue
--data-source python --prefetch 3
--data-source python --feed queue --prefetch 0
--resume
--checkpoint-steps 5
--variable-update replicated --all-reduce nccl
--variable-update replicated --all-reduce psgpu#4
""".strip().splitlines()

# What stands for a value in a hint, and values for options that a hint names without one.
SAID = {"DIR": "DIR", "B": "4096", "gpu:N": "gpu:1"}
FITTING = {
    "--model": "resnet50",
    "--num-gpus": "4",
    "--num-batches": "10",
    "--trace": "1",
    "--drill": "nan@1",
    "--ps": "gpu:1",
    "--num-intra-threads": "1",
    "--num-inter-threads": "1",
}
WORDS = ("and", "or", "which", "without", "with", "of", "on", "places")
OF_THE_EXCHANGE = (
    "--all-reduce",
    *(one.option.flag for one in options_of(RunSpec) if one.option.theme == "Exchange between devices"),
)
OPTION = re.compile(r"--[a-z][a-z0-9-]*")
REMOVED = re.compile(
    r"remove (it|them|--[\w-]+(?: (?!and )\w+)?"
    r"(?:(?:,| and) (?:--[\w-]+|the options of the exchange))*)(.*)"
)

Command = dict[str, str | None]  # each option with its value, None: it takes none


def read(text: str) -> Command:
    """Read a command line."""
    command: Command = {}
    option = ""
    for word in text.split():
        if word.startswith("--"):
            option = word
        command[option] = None if word == option else word
    return command


def without(command: Command, options: Sequence[str]) -> Command:
    return {option: value for option, value in command.items() if option not in options}


def with_options(command: Command, said: str) -> Command:
    """Return the command with the options of these words."""
    kept, _, dropped = said.partition("without ")
    command = without(command, OPTION.findall(dropped))
    for option, value in re.findall(r"(--[a-z][a-z0-9-]*)(?: ([\w:#]+))?", kept):
        named = value not in ("", *WORDS)
        command = {**command, option: SAID.get(value, value) if named else FITTING.get(option)}
    return command


def way(command: Command, what: str, said: str) -> Command:
    """Return the command as one alternative of a hint: `remove --xla`, `use --num-gpus 1`."""
    removed = REMOVED.match(said)
    if removed is None:
        return with_options(command, said)
    words, rest = removed.groups()
    reason = what.rpartition(": ")[2]
    them = reason if OPTION.search(reason) else what
    named = OPTION.findall({"it": what.split()[0], "them": them}.get(words, words))
    others = OF_THE_EXCHANGE if "the options of the exchange" in words else ()
    return with_options(without(command, (*named, *others)), rest)


def ways(command: Command, what: str, hint: str) -> list[Command]:
    """Return the command as each alternative of a hint; what follows `;` or `:` comes on top."""
    found = [command]
    for part in re.split(r"; |: (?=--)", hint):
        either = re.split(r", or | or (?=--|remove )", part)
        if not part.startswith("remove "):
            either = [one for said in either for one in re.split(r", (?=--)", said)]
        reported = [said for said in either if OPTION.search(said) or said.startswith("remove ")]
        found = [way(one, what, said) for one in found for said in reported] or found
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with examples of both data sets, and room for checkpoints."""
    folder = tmp_path / "DIR"
    folder.mkdir()
    for name in ("train", "validation"):
        (folder / f"{name}-00000-of-00001").write_bytes(framed(b"an example"))
    for name in ("data_batch_1", "test_batch"):
        (folder / f"{name}.bin").write_bytes(bytes(1 + 32 * 32 * 3))
    return folder


ON = Site(Machine(source="live"))
TARGETS: dict[str, Target] = {}


def refusal(command: Command, folder: Path) -> tuple[str, str] | None:
    """Return what a command is refused with, and its hint; None where it would run."""
    texts: dict[str, Any] = {
        option.removeprefix("--").replace("-", "_"): str(folder)
        if value == "DIR"
        else value or option != "--resume" or ""
        for option, value in command.items()
    }
    texts = {f"{name}_" if keyword.iskeyword(name) else name: text for name, text in texts.items()}
    texts = {name: [text] if name == "drill" else text for name, text in texts.items()}
    model = texts.pop("model", "trivial")
    try:
        job = Job(model, given_of(PlanOptions, texts), given_of(RunSpec, texts))
        key = repr(job.request)
        if key not in TARGETS:
            TARGETS[key] = ON.target(job.request)
        runnable(job, job.placed(TARGETS[key]), OutputOptions())
    except GputopoError as error:
        return error.what, error.hint
    return None


def test_each_alternative_that_a_hint_names_is_not_refused(folder: Path) -> None:
    for command in map(read, REFUSED):
        refused = refusal(command, folder)
        assert refused is not None, command
        for better in ways(command, *refused):
            assert better != command, refused[1]
            assert refusal(better, folder) is None, f"{refused[1]}: {better}"
