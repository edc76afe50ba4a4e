import io
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo import pages
from gputopo.captures import load, readable
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-9\nGPU1\tPIX\t X \t0-9\n"


def put(folder: Path, content: bytes | str, name: str = "capture") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def refused(*sources: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load(sources)
    assert "\n" not in caught.value.what + caught.value.hint
    assert caught.value.hint
    return caught.value


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MATRIX.encode())))
    assert load(["-"]).links[0].hop is Hop.PIX


def test_an_empty_standard_input_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert refused("-").what == "standard input is empty"
    monkeypatch.setattr(sys, "stdin", None)
    assert refused("-").what == "standard input is closed"
    assert refused("-", "-").what == "standard input can be read only once"


def test_a_file_wins_over_a_bundled_machine_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, MATRIX, "7gforce")
    assert len(load(["7gforce"]).gpus) == 2


def test_a_missing_file_names_the_nearest_bundled_machine(tmp_path: Path) -> None:
    near = refused("7gforc")
    assert near.what == "there is no file 7gforc"
    assert near.hint.startswith("did you mean the bundled 7gforce")
    assert "dgx1-p100" in refused("zzz.txt").hint
    assert refused(str(tmp_path / "7gforc")).hint == "check the path"


def test_what_is_no_readable_file_is_refused_by_its_kind(tmp_path: Path) -> None:
    assert refused(str(tmp_path)).what == f"{tmp_path} is a folder"
    assert "is empty" in refused(put(tmp_path, "")).what
    assert "is empty" in refused(put(tmp_path, " \n\t\n")).what
    for data in (
        b"GPU0\0GPU1",
        b"GPU0 \xff\xfe\x80",
        b"\xff\xfeG",
        b"\x7fELF\x02\0",
        bytes(range(256)),
    ):
        assert "is a binary file" in refused(put(tmp_path, data)).what
    assert "name of the file is empty" in refused("").what
    assert "cannot read" in refused("a\0b").what
    assert refused().what == "there is nothing to read"


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("this system has no /dev/zero")
    assert "larger than 64 MiB" in refused("/dev/zero").what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"sche', "is not complete JSON"),
        ('{"nvbandwidth": 1}', "is JSON of nvbandwidth without its testcases"),
        ('{"some": 1}', "is JSON, but not of gputopo"),
        ("[" * 100_000, "nested too deep"),
        (
            "ERROR: Option -m is missing its value.\n\n# (exit code: 255)",
            "is an error text of nvidia-smi: ERROR: Opt",
        ),
        ("|   0  Orin (nvgpu)                  N/A  | N/A              N/A |", "is of a Jetson"),
        ("pid, process_name, used_gpu_memory [MiB]\n1, python, 30 MiB\n", "query-compute-apps"),
        ("[    0.000000] Linux version 6.8.0", "is in an unknown format"),
    ],
)
def test_a_text_that_is_no_capture_is_named_as_what_it_is(tmp_path: Path, text: str, what: str) -> None:
    assert what in refused(put(tmp_path, text)).what


def test_the_formats_that_are_read_are_listed_on_the_page_that_the_error_names(tmp_path: Path) -> None:
    assert "gputopo explain formats" in refused(put(tmp_path, "the quick brown fox")).hint
    page = pages.read("formats")
    assert all(reads in page for reads, _ in readable())


def test_reading_a_capture_loads_neither_a_driver_nor_a_framework() -> None:
    heavy = {"pynvml", "psutil", "rich", "tensorflow", "jinja2", "asyncio", "defusedxml"}
    code = f"import sys, gputopo.captures as c; c.load(['7gforce']); print(*{heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == ""
