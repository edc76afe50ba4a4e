import pytest

from gputopo import findings
from gputopo.values.machine import GpuProcess, Hop
from tests.findings.boxes import all_of, every_gpu, find, gpu, pair, sound
from tests.findings.faults import IDLE, process, two_nodes


@pytest.mark.parametrize(
    ("memory_mib", "utilization", "severity"),
    [(100, 0, "info"), (1_615, 0, "info"), (1_616, 0, "warning"), (100, 10, "warning"), (None, 9, "info")],
)
def test_a_program_that_takes_a_tenth_of_the_card_is_a_warning(
    memory_mib: int | None, utilization: int, severity: str
) -> None:
    reported = IDLE | {
        "utilization_percent": {"gpu": utilization},
        "processes": process("compute", memory_mib),
    }
    (found,) = find(gpu(1, **reported)(sound()))  # 16160 MiB in all
    assert (found.id, found.severity) == ("gpu.busy", severity)
    assert "python (pid 4321)" in found.says


def test_a_screen_or_an_idle_server_leaves_a_card_free() -> None:
    idle = every_gpu(**IDLE, memory_mib={"used": 22})
    server = GpuProcess(pid=1, kind="compute", name="nvidia-cuda-mps-server", memory_mib=30)
    for processes in ((), None, process("graphics"), (server,)):
        assert findings.find(all_of(idle, gpu(1, processes=processes))(sound())) == ()


def test_persistence_mode_matters_on_a_card_that_no_display_server_keeps_initialised() -> None:
    off = every_gpu(**IDLE, memory_mib={"used": 22}, persistence_mode=False)
    assert [one.id for one in findings.find(off(sound()))] == ["configuration.persistence_off"]
    for kept in (gpu(1, display_active=True), gpu(1, processes=process("graphics"))):
        (found,) = findings.find(all_of(off, kept)(sound()))
        assert found.subject.text == "gpus:0,2-3"
    alone = gpu(1, persistence_mode=False, display_active=True)
    assert findings.find(all_of(off, every_gpu(persistence_mode=True), alone)(sound())) == ()
    assert findings.find(all_of(off, every_gpu(persistence_mode=None))(sound())) == ()


def test_use_without_a_process_is_reported_with_what_shows_it() -> None:
    (found,) = findings.find(sound())
    assert (found.id, found.severity, found.subject.text) == ("gpu.busy", "warning", "gpus:0-3")
    assert "97% load, 9000 of 16160 MiB used, no process listed" in found.says


def test_many_programs_are_named_in_short() -> None:
    (found,) = find(gpu(1, processes=process() * 9)(sound()))
    assert "and 6 more" in found.says
    assert len(found.evidence["processes"]) == 9


def test_a_part_of_the_gpus_in_pci_order_is_no_other_order() -> None:
    shown = all_of(gpu(0, cuda_index=None), *(gpu(n, cuda_index=n - 1) for n in (1, 2, 3)))
    assert find(shown(sound())) == ()
    (found,) = find(all_of(shown, gpu(1, cuda_index=2), gpu(3, cuda_index=0))(sound()))
    assert found.id == "cuda.order_differs"
    assert "GPU 1 is CUDA device 2" in found.says


def test_gpus_of_two_nodes_with_their_own_cpus_are_fine() -> None:
    machine = all_of(
        two_nodes,
        *(gpu(n, numa_node=1, cpu_affinity="20-39") for n in (2, 3)),
        *(pair(a, b, hop=Hop.SYS) for a in (0, 1) for b in (2, 3)),
    )(sound())
    assert find(machine) == ()


def test_without_any_known_node_there_is_no_finding() -> None:
    # Virtual machines and many boards report -1 for all: no fault.
    machine = all_of(two_nodes, every_gpu(numa_node=None, cpu_affinity=None))(sound())
    assert find(machine) == ()


def test_a_mixed_box_lists_its_models() -> None:
    other = {"name": "Tesla V100-PCIE-16GB", "nvlinks": (), "memory_mib": {"total": 32_000}}
    (found,) = find(gpu(3, **other)(sound()))
    assert (found.id, found.severity, found.subject.text) == ("machine.mixed_models", "info", "machine")
    assert found.evidence["models"] == {"Tesla V100-SXM2-16GB": [0, 1, 2], "Tesla V100-PCIE-16GB": [3]}


def test_an_unknown_card_is_reported_as_not_compared() -> None:
    (found,) = find(every_gpu(name="NVIDIA Future 9000")(sound()))
    assert (found.id, found.severity, found.subject.text) == ("card.no_expectation", "info", "gpus:0-3")
    assert "no reference data" in found.says


def test_two_unknown_models_are_reported_one_by_one() -> None:
    machine = all_of(*(gpu(n, name=f"NVIDIA Future {n // 2}") for n in range(4)))(sound())
    assert [(finding.id, finding.subject.text) for finding in find(machine)] == [
        ("machine.mixed_models", "machine"),
        ("card.no_expectation", "gpus:0-1"),
        ("card.no_expectation", "gpus:2-3"),
    ]


def test_a_card_without_a_name_is_not_called_unknown() -> None:
    assert find(every_gpu(name=None)(sound())) == ()
