import json
import socket
from pathlib import Path

from tests.kit import commands
from tests.kit.forks import Done


def run(*arguments: str) -> Done:
    return commands.run("-m", "tests.kit.command", *arguments)


def test_inspect_sees_the_machine_of_the_kit_and_the_tree_is_kept(tmp_path: Path) -> None:
    done = run("dual_socket_4_4", "--tree", str(tmp_path), "--", "inspect", "--json")
    assert done.returncode in (0, 1), done.stderr
    machine = json.loads(done.stdout)["machine"]
    assert [gpu["name"] for gpu in machine["gpus"]] == ["NVIDIA GeForce RTX 2080 Ti"] * 8
    assert machine["host"]["sockets"] == 2
    assert (tmp_path / "sys/bus/pci/devices").is_dir()


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
