"""`gputopo completion`: what the Tab key offers, asked of bash itself where the script is for bash."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gputopo.cli.commands import COMMANDS
from gputopo.cli.completion import place
from gputopo.report.completion import literal_words
from gputopo.workload import workloads
from tests.cli.conftest import Call

LINES = {
    "gputopo ": [*COMMANDS, "--help", "--version"],
    "gputopo be": ["bench-reduction"],
    "gputopo run --mod": ["--model"],
    "gputopo run --model vgg": ["vgg11", "vgg16", "vgg19"],
    "gputopo run --cpu --model=vgg": ["vgg11", "vgg16", "vgg19"],
    "gputopo plan --ps gpu:s": ["spread"],  # readline replaces what follows the colon
    "gputopo inspect --from dgx": ["dgx1-p100", "dgx1-v100"],
    "gputopo inspect --from dg\\ x": [],
    "gputopo run --seed ": [],
    "gputopo explain pcie.width": ["pcie.width_degraded"],
    "gputopo completion ": ["bash", "zsh", "fish"],
    "gputopo run --model mlp -- python --mod": [],  # the words of another program
}


def test_bash_completes_commands_options_and_their_values(call: Call, tmp_path: Path) -> None:
    asked = [
        f'COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}; _gputopo; echo "${{COMPREPLY[*]}}"'
        for line in LINES
    ]
    script = "\n".join(["compopt() { :; }", call("completion", "bash").out, *asked])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert dict(zip(LINES, map(str.split, done.stdout.splitlines()), strict=True)) == LINES


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_parsed_and_names_every_model(
    shell: str, call: Call, tmp_path: Path
) -> None:
    text = call("completion", shell).out
    assert all(name in text for name in (*COMMANDS, *workloads.names()))
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell} here")
    file = tmp_path / "script"
    file.write_text(text)
    subprocess.run([found, "-n", str(file)], check=True, timeout=60)


def test_installing_writes_the_script_once_and_says_where(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    (tmp_path / ".zshrc").write_text("own line")
    for _ in range(2):
        done = call("completion", "--install")
        assert (done.code, done.out) == (0, "")
    file = tmp_path / ".local/share/gputopo/completion.zsh"
    assert file.read_text() == call("completion", "zsh").out
    assert (tmp_path / ".zshrc").read_text() == f"own line\nsource {file}  # completes gputopo\n"
    assert f"wrote {file}" in done.err


def test_bash_loads_the_file_itself_where_it_has_bash_completion() -> None:
    environ = {"HOME": "/home/a"}
    file, by = place("bash", environ, has_bash_completion=True)
    assert (file, by) == (Path("/home/a/.local/share/bash-completion/completions/gputopo"), None)
    assert place("bash", environ, has_bash_completion=False) == (file, Path("/home/a/.bashrc"))


def test_an_unknown_shell_is_refused_with_those_that_are_known(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = call("completion")
    assert done.code == 2
    assert "tcsh" in done.err
    assert "gputopo completion bash, zsh or fish" in done.err
    assert call("completion", "csh").code == 2


def test_only_what_is_typed_as_it_stands_is_a_word() -> None:
    assert literal_words("auto|cpu|gpu:N|gpu:spread") == ("auto", "cpu", "gpu:spread")
    assert literal_words("N[,N...]|auto") == ("auto",)
    assert literal_words("FILE") == ()
