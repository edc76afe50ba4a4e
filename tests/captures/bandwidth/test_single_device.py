from pathlib import Path

from gputopo.captures import load
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Gpu, Machine
from tests import there
from tests.kit.dialects import bandwidthtest


def put(folder: Path, name: str, rate: float, card: str = "A") -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(bandwidthtest.quick(card, {"Host to Device": rate}))
    return str(path)


def measured(*sources: str) -> tuple[Machine, Bandwidth]:
    machine = load(sources)
    return machine, there(machine.bandwidth)


def rates(bandwidth: Bandwidth) -> dict[str, float | None]:
    return {s.destination: s.median_gb_per_s for s in bandwidth.copies}


def test_files_given_together_are_the_gpus_that_their_names_number(tmp_path: Path) -> None:
    names = ("my-gpus_gpu_3.txt", "run-gpu1.txt", "device-12.log")
    files = [put(tmp_path, name, 1000 + i) for i, name in enumerate(names)]
    machine, bandwidth = measured(*files)
    assert rates(bandwidth) == {"gpu:3": 1.0, "gpu:1": 1.001, "gpu:12": 1.002}
    assert [gpu.index for gpu in machine.gpus] == [1, 3, 12]
    assert any("GPU 3 because of the number in the file name" in note for note in bandwidth.notes)
    assert machine.contradictions == ()


def test_the_name_of_the_program_numbers_the_gpus(tmp_path: Path) -> None:
    files = [put(tmp_path, f"bandwidthTest-{i}.txt", 1000 + i) for i in (2, 0, 1)]
    machine, bandwidth = measured(*files)
    assert rates(bandwidth) == {"gpu:0": 1.0, "gpu:1": 1.001, "gpu:2": 1.002}
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2]


def test_one_file_alone_keeps_its_own_number(tmp_path: Path) -> None:
    machine, bandwidth = measured(put(tmp_path, "gpu_3.txt", 1000))
    assert rates(bandwidth) == {"gpu:0": 1.0}
    assert [gpu.index for gpu in machine.gpus] == [0]


def test_beside_a_machine_of_several_gpus_the_number_in_the_name_counts(tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    schema.write(whole, Machine(source="live", gpus=tuple(Gpu(index=i, name="A") for i in range(4))))
    for order in (1, -1):
        machine, bandwidth = measured(*[str(whole), put(tmp_path, "gpu_3.txt", 1000)][::order])
        assert rates(bandwidth) == {"gpu:3": 1.0}
        assert [gpu.index for gpu in machine.gpus] == [0, 1, 2, 3]
        assert machine.contradictions == ()


def test_a_file_of_another_card_than_the_machine_has_there_is_a_contradiction(tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    schema.write(whole, Machine(source="live", gpus=tuple(Gpu(index=i, name="A") for i in range(4))))
    machine, _ = measured(str(whole), put(tmp_path, "gpu_3.txt", 1000, card="B"))
    assert [c.fact for c in machine.contradictions] == ["gpus[3].name"]
