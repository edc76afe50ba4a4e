import json
import socket
from pathlib import Path

import pytest

from tests.kit import commands
from tests.kit.command import main
from tests.kit.forks import Done
from tests.kit.scenarios import SCENARIOS


def run(*arguments: str) -> Done:
    return commands.run("-m", "tests.kit.command", *arguments)


def test_inspect_sees_the_machine_of_the_kit_and_the_tree_is_kept(tmp_path: Path) -> None:
    done = run("dual_socket_4_4", "--tree", str(tmp_path), "--", "inspect", "--json")
    assert done.returncode in (0, 1), done.stderr
    machine = json.loads(done.stdout)["machine"]
    assert [gpu["name"] for gpu in machine["gpus"]] == ["NVIDIA GeForce RTX 2080 Ti"] * 8
    assert machine["host"]["sockets"] == 2
    assert (tmp_path / "sys/bus/pci/devices").is_dir()


@pytest.mark.parametrize("arguments", [[], ["no such machine"], ["desktop", "--tree"]])
def test_a_wrong_call_states_how_it_goes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in SCENARIOS)


@pytest.mark.parametrize("text", ["four+nonsense", "four+lost@9", "desktop+ecc_uncorrected"])
def test_a_fault_that_there_is_not_is_refused_in_words(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([text, "--", "inspect"]) == 2
    assert "usage: SCENARIO[+FAULT[@GPU]...]" in capsys.readouterr().err


def test_one_command_makes_a_recording_without_identities(tmp_path: Path) -> None:
    recording = tmp_path / "machine.json"
    done = run("four+busy_process@0", "--", "inspect", "--record", str(recording))
    assert done.returncode in (0, 1), done.stderr
    text = recording.read_text()
    assert '"pid":31337' in text.replace(" ", "")
    assert '"name":"python"' in text.replace(" ", "")
    for secret in ("someone", "train.py", "GPU-0000", 'uuid":"', f'"{socket.gethostname()}"'):
        assert secret not in text.replace(" ", "")
    assert json.loads(text)["gpus"][0]["processes"][0]["user"] is None
