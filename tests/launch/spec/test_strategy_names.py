from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.names import STRATEGIES, StrategyName, read
from gputopo.launch.spec.rules import require_strategy
from gputopo.launch.spec.run_spec import Exchange, RunSpec
from gputopo.values.errors import UsageError
from gputopo.values.run.drill import Drill
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


@given(st.integers(1, 12))
def test_hierarchical_is_refused_for_odd_counts_alone(devices: int) -> None:
    asked = spec("mirrored:hierarchical", devices)
    if devices % 2:
        with pytest.raises(UsageError, match="loses the gradients"):
            require_strategy(asked)
    else:
        assert require_strategy(asked) == StrategyName("mirrored", "hierarchical")


def test_nccl_is_refused_without_gpus_and_taken_with_them() -> None:
    with pytest.raises(UsageError, match="needs GPUs"):
        require_strategy(spec("mirrored:nccl"))
    assert require_strategy(spec("mirrored:nccl", backend="gpu")).reduction == "nccl"


def test_one_device_takes_one_device() -> None:
    assert require_strategy(spec("one-device", 1)).kind == "one-device"
    with pytest.raises(UsageError, match="this run has 2"):
        require_strategy(spec("one-device", 2))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"method": "kuza55"}, "--method kuza55"),
        ({"all_reduce": "copy"}, "--all-reduce copy"),
        ({"variable_update": "independent"}, "independent"),
        ({"exchange": Exchange(relaxed=True)}, "exchange"),
        ({"task": "eval"}, "eval"),
        ({"drills": (Drill(fault="hang", step=2),)}, "--drill"),
    ],
)
def test_what_does_not_go_with_a_strategy_is_named(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        require_strategy(spec("mirrored", **fields))
