import pytest

from gputopo.findings import find
from gputopo.findings.rule import Finding
from gputopo.values.machine import Machine
from tests.findings.boxes import all_of, every_gpu, gpu, sound


def fabric(state: str, status: str | None = None, **health: str) -> dict[str, object]:
    return {"state": state, "status": status, "health": health or None}


def only(machine: Machine) -> Finding:
    (found,) = find(machine)
    return found


@pytest.mark.parametrize("state", ["not started", "in progress"])
def test_a_board_whose_gpus_have_not_joined_is_told_once(state: str) -> None:
    found = only(every_gpu(fabric=fabric(state))(sound()))
    assert (found.id, found.subject.text, found.severity) == ("nvlink.fabric_not_ready", "gpus:0-3", "error")
    assert state in found.says
    assert "CUDA" in found.says
    assert "nvidia-fabricmanager" in (found.remedy or "")


def test_a_gpu_that_was_refused_is_told_with_the_drivers_words() -> None:
    found = only(gpu(2, fabric=fabric("completed", "insufficient resources"))(sound()))
    assert (found.id, found.subject.text, found.severity) == ("nvlink.fabric_not_ready", "gpu:2", "error")
    assert "insufficient resources" in found.says


def test_gpus_that_have_joined_or_have_no_fabric_are_sound() -> None:
    well = {
        "summary": "healthy",
        "bandwidth": "full",
        "route_recovery_in_progress": "false",
        "route_unhealthy": "false",
        "access_timeout_recovery": "false",
        "incorrect_configuration": "none",
    }
    for partition in ("true", "false"):
        whole = every_gpu(fabric=fabric("completed", "success", **well, partition_assigned=partition))
        assert find(whole(sound())) == ()
    assert find(every_gpu(fabric=fabric("completed"))(sound())) == ()


@pytest.mark.parametrize(
    ("name", "word", "severity"),
    [
        ("summary", "limited capacity", "warning"),
        ("summary", "unhealthy", "error"),
        ("bandwidth", "degraded", "warning"),
        ("route_recovery_in_progress", "true", "warning"),
        ("access_timeout_recovery", "true", "warning"),
        ("route_unhealthy", "true", "error"),
        ("incorrect_configuration", "insufficient nvlinks", "error"),
    ],
)
def test_trouble_since_then_is_told_in_the_drivers_words(name: str, word: str, severity: str) -> None:
    found = only(gpu(1, fabric=fabric("completed", "success", **{name: word}))(sound()))
    assert (found.id, found.subject.text, found.severity) == ("nvlink.fabric_unhealthy", "gpu:1", severity)
    assert f"{name.replace('_', ' ')} {word}" in found.says


def test_health_is_not_told_of_a_gpu_that_has_not_joined() -> None:
    found = only(gpu(1, fabric=fabric("in progress", route_recovery_in_progress="true"))(sound()))
    assert found.id == "nvlink.fabric_not_ready"


def test_a_card_split_by_mig_needs_no_fabric() -> None:
    split = all_of(gpu(1, fabric=fabric("in progress"), mig={"mode": True}))
    assert {finding.id for finding in find(split(sound()))} == {"configuration.mig_on"}
