"""The README against the program: its commands, options, links and outputs are those that there are."""

import re
import shlex
from pathlib import Path

import pytest

from gputopo import pages
from gputopo.captures import bundled_names
from gputopo.cli import run_command

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = (README, *map(pages.read, pages.PAGES))
COMMANDS = ("inspect", "plan", "run")


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command([command, "--help-all"]) == 0
    return capsys.readouterr().out


def written_commands() -> list[list[str]]:
    """Every gputopo command line of the README, in code blocks and in the text, as its words."""
    lines = re.findall(r"(?:^\$ |&& \.venv/bin/|`)(gputopo [^`\n#]*)", README, re.MULTILINE)
    plain = [line for line in lines if "[" not in line and "|" not in line and "..." not in line]
    return [shlex.split(line) for line in plain]


def test_the_readme_has_commands_to_check() -> None:
    assert len(written_commands()) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_in_the_readme_is_an_option_of_that_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    offered = help_of(command, capsys)
    for words in written_commands():
        if words[1] != command:
            continue
        own = words[: words.index("--")] if "--" in words else words
        for word in own:
            if word.startswith("--"):
                assert re.search(rf"{re.escape(word)}\b", offered), f"{' '.join(words)}: no {word}"


def test_the_readme_is_one_page() -> None:
    assert len(README.split()) <= 1500


def test_every_page_and_file_that_the_readme_links_to_is_there() -> None:
    linked = re.findall(r"\]\(([^)#]+)\)", README)
    assert {f"gputopo/pages/{page}.md" for page in pages.PAGES} <= set(linked)
    assert all((ROOT / path).exists() for path in linked)


def test_every_bundled_machine_is_on_the_page_of_formats() -> None:
    assert all(f"`{name}`" in pages.read("formats") for name in bundled_names())


def test_the_first_two_commands_set_up_and_run_and_set_up_and_test() -> None:
    blocks = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert blocks[0].splitlines() == [
        "python3 -m venv .venv && "
        """.venv/bin/pip install ".$(command -v nvidia-smi >/dev/null && echo '[cuda]')" && """
        ".venv/bin/gputopo run --model alexnet --prefer-pix"
    ]
    assert blocks[1].count("\n") == 1
    assert "pytest" in blocks[1]
    assert blocks[1].strip() in README


@pytest.mark.parametrize(
    "command",
    [
        "gputopo plan --from 7gforce --model alexnet --num-gpus 2 --prefer-pix",
        "gputopo inspect --from 7gforce",
        "gputopo bandwidth --from 7gforce",
        "gputopo report --published keras-multi-gpu",
        "gputopo run --from 7gforce --num-gpus 2 --prefer-pix --dry-run -- python train.py",
        "gputopo run --model resnet50 --from dgx1-v100 --hosts n1,n2 --dry-run --format sbatch",
    ],
)
def test_what_a_command_shows_that_measures_nothing_is_what_the_documents_show(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the block below a command line `...` stands for lines that are left out."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path))
    assert run_command(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    blocks = [document.partition(f"```\n$ {command}\n")[2] for document in DOCUMENTS]
    assert blocks[0], f"the README does not show {command}"
    for block in filter(None, blocks):
        rest = printed
        for part in filter(None, block.partition("```\n")[0].split("...\n")):
            _, found, rest = rest.partition(part)
            assert found, part
