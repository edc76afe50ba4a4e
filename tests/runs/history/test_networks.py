from pathlib import Path

import pytest

from gputopo.runs.history import latest, latest_network, save_network
from gputopo.values.bandwidth import Bandwidth, Sample
from gputopo.values.errors import InputError
from tests.planner.joint_machines import two_switches


def between(*hosts: str, rate: float = 1.0) -> Bandwidth:
    return Bandwidth(
        source="live",
        samples=tuple(
            Sample(kind="network", source=f"host:{a}", destination=f"host:{b}", median_gb_per_s=rate)
            for a in hosts
            for b in hosts
            if a != b
        ),
        measured_at=1_795_000_000.0,
    )


def test_the_last_measurement_that_has_all_hosts_is_returned(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    assert latest_network(file, {"n1"}) is None
    save_network(file, between("n1", "n2", "n3"), saved_at=1.0)
    save_network(file, between("n1", "n2", rate=2.0), saved_at=2.0)
    save_network(file, between("n4", "n5"), saved_at=3.0)
    found = latest_network(file, {"n2", "n1"})
    assert found is not None
    assert found.bandwidth == between("n1", "n2", rate=2.0)
    whole = latest_network(file, {"n3", "n1"})
    assert whole is not None
    assert len(whole.bandwidth.samples) == 6
    assert latest_network(file, {"n1", "n4"}) is None


def test_a_measurement_between_hosts_is_none_of_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    save_network(file, between("n1", "n2"), saved_at=1.0)
    assert latest(file, two_switches()) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    file.write_text("no database" * 100)
    with pytest.raises(InputError):
        latest_network(file, {"n1"})
