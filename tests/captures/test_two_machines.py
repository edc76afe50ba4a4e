"""Files of two machines are refused; a GPU that is listed in one sample and not in another is lost."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gputopo.captures import load
from gputopo.findings import find
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Host, Machine, PowerW, TemperatureC
from tests.captures.samples import loaded


def output(time: str, gpus: list[int], name: str = "NVIDIA A100-SXM4-80GB", box: int = 1) -> str:
    head = (
        "==============NVSMI LOG==============\n\nDriver Version       : 535.104.05\n"
        f"Timestamp            : Sat Jun  3 {time} 2023\nAttached GPUs        : {len(gpus)}\n"
    )
    return head + "".join(
        f"GPU 00000000:{bus:02X}:00.0\n    Product Name     : {name}\n"
        f"    GPU UUID         : GPU-{box:08d}-1111-2222-3333-{bus:012d}\n    Performance State : P0\n"
        for bus in gpus
    )


def test_gpus_with_other_uuids_are_of_two_machines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two machines: their GPUs have other UUIDs") as error:
        loaded(tmp_path, output("10:00:00", [1, 2]), output("10:00:01", [1, 2], box=2))
    assert "inspect --fleet --from" in error.value.hint


def recordings(folder: Path, *hosts: str | None, limits: Sequence[float] = (300.0, 300.0)) -> list[str]:
    """Write recordings n1.json, n2.json, ... of hosts with these fingerprints."""
    paths = []
    for number, (host, limit) in enumerate(zip(hosts, limits, strict=True), 1):
        gpu = Gpu(index=0, power_w=PowerW(limit=limit), temperature_c=TemperatureC(gpu=30 + number))
        path = folder / f"n{number}.json"
        schema.write(path, Machine(source="live", host=Host(fingerprint=host), gpus=(gpu,)))
        paths.append(str(path))
    return paths


def test_recordings_of_two_hosts_are_refused_by_their_names(tmp_path: Path) -> None:
    paths = recordings(tmp_path, "1f", "2f")
    with pytest.raises(InputError, match=r"^n1\.json and n2\.json are two hosts$") as error:
        load(paths)
    assert error.value.hint == f"add --fleet: gputopo inspect --fleet --from {' '.join(paths)}"


def test_recordings_of_one_host_are_merged_without_a_word(tmp_path: Path) -> None:
    machine = load(recordings(tmp_path, "1f", "1f"))
    assert (machine.source, len(machine.samples), machine.host.fingerprint) == ("live", 2, "1f")
    assert find(machine) == ()


@pytest.mark.parametrize(
    ("hosts", "words"),
    [((None, "1f"), "n1.json does not say of which"), ((None, None), "n1.json and n2.json do not say")],
)
def test_a_recording_without_a_fingerprint_is_merged_with_a_warning(
    hosts: tuple[str | None, ...], words: str, tmp_path: Path
) -> None:
    (warning,) = find(load(recordings(tmp_path, *hosts)))
    assert (warning.id, warning.severity) == ("machine.unknown_host", "warning")
    assert warning.says.startswith("n1.json and n2.json are read as one host; ")
    assert words in warning.says


def test_files_that_disagree_are_called_by_their_names(tmp_path: Path) -> None:
    paths = recordings(tmp_path, "1f", "1f", limits=(180.0, 300.0))
    (finding,) = find(load(paths))
    assert ": 180.0 (n1.json); 300.0 (n2.json); the first is used" in finding.says
    folder = tmp_path / "later"
    folder.mkdir()
    (other,) = recordings(folder, "1f", limits=(300.0,))
    (finding,) = find(load([paths[0], other]))  # two files of one name
    assert f"180.0 ({paths[0]}); 300.0 ({other})" in finding.says


def test_gpus_of_other_models_are_of_two_machines(tmp_path: Path) -> None:
    first, second = output("10:00:00", [1]), output("10:00:01", [1], name="NVIDIA B200", box=2)
    without = [text.replace("GPU UUID ", "Board ID ") for text in (first, second)]
    with pytest.raises(InputError, match="other models"):
        loaded(tmp_path, *without)


def test_gpus_at_other_addresses_are_of_two_machines(tmp_path: Path) -> None:
    texts = [output("10:00:00", buses).replace("GPU UUID ", "Board ID ") for buses in ([1, 2], [3, 4])]
    with pytest.raises(InputError, match="other PCI addresses"):
        loaded(tmp_path, *texts)


@pytest.mark.parametrize(("later", "in_one_file"), [([1, 3], True), ([1, 2, 3], False)])
def test_a_gpu_that_is_listed_at_one_time_only_is_lost(
    tmp_path: Path, later: list[int], in_one_file: bool
) -> None:
    earlier = [1, 2, 3] if later == [1, 3] else [1, 3]
    texts = [output("10:00:00", earlier), output("11:00:00", later)]
    machine = loaded(tmp_path, *(["".join(texts)] if in_one_file else texts))
    assert machine.contradictions == ()
    (lost,) = [one for one in find(machine) if one.severity == "error"]
    assert lost.id == "gpu.lost"
    assert "0000:02:00.0" in lost.says
