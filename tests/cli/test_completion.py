"""`gputopo completion`: what the Tab key offers, asked of bash itself, too."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.cli import COMMANDS
from tests.cli.conftest import Call

ROOT = Path(__file__).parents[2]
LINES = {
    "gputopo ": [*COMMANDS, "--help", "--version"],
    "gputopo be": ["bench-reduction"],
    "gputopo run --mod": ["--model"],
    "gputopo run --model vgg": ["vgg11", "vgg16", "vgg19"],
    "gputopo run --cpu --model=vgg": ["vgg11", "vgg16", "vgg19"],
    "gputopo plan --ps gpu:s": ["gpu:spread"],
    "gputopo inspect --from dgx": ["dgx1-p100", "dgx1-v100"],
    "gputopo inspect --from dg\\ x": [],
    "gputopo run --seed ": [],
    "gputopo explain pcie.width": ["pcie.width_degraded"],
    "gputopo completion ": ["bash", "zsh", "fish"],
    "gputopo run --model mlp -- python --mod": [],  # the words of another program
}


def test_what_may_follow_is_offered(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for line, offered in LINES.items():
        monkeypatch.setenv("_GPUTOPO_COMPLETE", line)
        assert [word.rpartition("=")[2] for word in call().out.splitlines()] == offered, line


def test_bash_asks_and_cuts_off_what_readline_keeps(call: Call, tmp_path: Path) -> None:
    lines = ["gputopo plan --ps gpu:s", "gputopo run --model=vgg11"]
    asked = [
        f'COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}; _gputopo; echo "${{COMPREPLY[*]}}"'
        for line in lines
    ]
    own = f'gputopo() {{ {shlex.quote(sys.executable)} -m gputopo "$@"; }}'
    script = "\n".join([own, call("completion", "bash").out, *asked])
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("spread\nvgg11\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_parsed(shell: str, call: Call, tmp_path: Path) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell} here")
    file = tmp_path / "script"
    file.write_text(call("completion", shell).out)
    subprocess.run([found, "-n", str(file)], check=True, timeout=60)


def test_an_unknown_shell_is_refused_with_those_that_are_known(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = call("completion")
    assert done.code == 2
    assert "tcsh" in done.err
    assert "gputopo completion bash, zsh or fish" in done.err
    assert call("completion", "csh").code == 2
