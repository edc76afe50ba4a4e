from typing import Any

import pytest

from gputopo.launch.spec.names import STRATEGIES, read
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import UsageError
from gputopo.values.run.events import Device


def spec(strategy: str, devices: int = 2, **fields: Any) -> RunSpec:
    given: dict[str, Any] = {
        "model": "lenet",
        "backend": "cpu",
        "variable_update": "replicated",
        "batch_size": 4,
        "devices": tuple(Device(tower=one, device=f"/CPU:{one}") for one in range(devices)),
    }
    return RunSpec(strategy=strategy, **{**given, **fields})


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_listed_name_is_read_in_any_case(name: str) -> None:
    assert read(name) == read(name.upper()) == STRATEGIES[name]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MirroredStrategy", "mirrored"),
        ("mirrored:hier", "mirrored:hierarchical"),
        ("mirrored:NcclAllReduce", "mirrored:nccl"),
        ("CentralStorageStrategy", "central"),
        ("OneDeviceStrategy", "one-device"),
        ("MultiWorkerMirroredStrategy", "multi_worker_mirrored"),
        ("mwms", "multi_worker_mirrored"),
    ],
)
def test_tensorflows_own_names_are_understood(name: str, meant: str) -> None:
    assert read(name) == STRATEGIES[meant]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("mirored", "mirrored"), ("centrl", "central"), ("xyz", "the strategies are: mirrored")],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(name)
    assert hint in refused.value.hint


@pytest.mark.parametrize("name", ["ps", "ParameterServerStrategy", "tpu"])
def test_strategies_of_other_processes_are_refused_for_what_they_need(name: str) -> None:
    with pytest.raises(UsageError, match="needs"):
        read(name)
