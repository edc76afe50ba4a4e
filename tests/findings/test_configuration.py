import pytest

from gputopo import findings
from gputopo.values.machine import GpuProcess
from tests.findings.boxes import all_of, every_gpu, find, gpu, sound
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


def test_a_part_of_the_gpus_in_pci_order_is_no_other_order() -> None:
    shown = all_of(gpu(0, cuda_index=None), *(gpu(n, cuda_index=n - 1) for n in (1, 2, 3)))
    assert find(shown(sound())) == ()
    (found,) = find(all_of(shown, gpu(1, cuda_index=2), gpu(3, cuda_index=0))(sound()))
    assert found.id == "cuda.order_differs"
    assert "GPU 1 is CUDA device 2" in found.says


def test_without_any_known_node_there_is_no_finding() -> None:
    # Virtual machines and many boards report -1 for all: no fault.
    machine = all_of(two_nodes, every_gpu(numa_node=None, cpu_affinity=None))(sound())
    assert find(machine) == ()
