"""Published images/sec and the machines that they are of."""

from gputopo.captures import bundled_names
from gputopo.reference import PUBLISHED_SOURCES, published_figures, published_machines
from gputopo.workload import require_workload


def test_every_measurement_names_its_source_and_a_known_machine_and_model() -> None:
    """The machine has the GPUs that the measurement used."""
    machines = published_machines()

    for row in published_figures():
        assert row.source in PUBLISHED_SOURCES
        assert row.machine in machines or row.machine in bundled_names()
        if row.machine in machines:
            assert max(row.gpus) < machines[row.machine].count
        assert require_workload(row.model)
        assert row.images_per_sec > 0
        assert (row.batch_per_gpu is None) != (row.batch is None)


def test_a_machine_has_a_link_for_each_pair_and_nvlinks_where_bridges_were() -> None:
    """P2P is OK there, whatever the other pairs have."""
    machine = published_machines()["6230-8x-2080ti-nvlink"].machine()

    assert len(machine.links) == 28
    assert {(link.a, link.b) for link in machine.links if link.nvlinks} == {(2, 3), (4, 5), (6, 7)}
    assert {link.p2p_read for link in machine.links if link.nvlinks} == {"OK"}
    assert "OK" not in {link.p2p_read for link in machine.links if not link.nvlinks}
