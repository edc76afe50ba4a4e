from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.device_names import device_name, host_of, rank_of, short_name, task_name
from gputopo.values.errors import UsageError
from gputopo.values.run.events import Device
from gputopo.values.run.names import STRATEGIES, read
from gputopo.values.run.spec import RunSpec


def spec(strategy: str, devices: int = 2, **fields: Any) -> RunSpec:
    given: dict[str, Any] = {
        "model": "lenet",
        "backend": "cpu",
        "variable_update": "replicated",
        "batch_size": 4,
        "devices": tuple(Device(tower=one, device=f"/CPU:{one}") for one in range(devices)),
    }
    return RunSpec(strategy=strategy, **{**given, **fields})


def test_every_listed_name_is_read_in_any_case() -> None:
    for name in STRATEGIES:
        assert read(name) == read(name.upper()) == STRATEGIES[name]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    cases: list[tuple[str, str]] = [
        ("mirored", "mirrored"),
        ("centrl", "central"),
        ("xyz", "the strategies are: mirrored"),
    ]
    for name, hint in cases:
        with pytest.raises(UsageError) as refused:
            read(name)
        assert hint in refused.value.hint


KINDS = st.sampled_from(["CPU", "GPU"])
NUMBERS = st.integers(0, 200)
RANKS = st.none() | st.integers(0, 5000)


@given(KINDS, NUMBERS, RANKS)
def test_a_name_as_tensorflow_writes_it_becomes_the_name_of_a_spec(
    kind: str, number: int, rank: int | None
) -> None:
    task = "/job:localhost/replica:0/task:0" if rank is None else f"/job:worker/replica:0/task:{rank}"
    assert short_name(f"{task}/device:{kind}:{number}") == device_name(kind, number, rank)


@given(KINDS, NUMBERS, RANKS)
def test_a_device_is_of_the_host_that_its_name_says(kind: str, number: int, rank: int | None) -> None:
    name = device_name(kind, number, rank)
    assert rank_of(name) == rank
    assert host_of(name) == device_name("CPU", 0, rank)


def test_names_are_those_of_tensorflow() -> None:
    assert device_name("GPU", 3) == "/GPU:3"
    assert device_name("GPU", 3, 1) == "/job:worker/task:1/device:GPU:3"
    assert task_name(2) == "/job:worker/task:2"
    assert short_name("/device:CPU:0") == "/CPU:0"
