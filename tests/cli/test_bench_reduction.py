import json
from collections.abc import Mapping, Sequence

import pytest

from gputopo.launch.jobs import reduction_bench
from gputopo.launch.jobs.reduction_bench import METHODS, ReductionTimes
from gputopo.values.bandwidth import CollectiveRate, Samples
from gputopo.values.ends import End
from tests.cli.conftest import ByName, Call

Asked = list[tuple[str, Sequence[int] | None, Sequence[str]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Puts times in the place of what TensorFlow would take, and notes what was asked for."""
    calls: Asked = []

    def measure(
        model: str,
        gpus: Sequence[int] | None,
        *,
        methods: Sequence[str],
        visible: Mapping[str, str],
        groups: Sequence[Sequence[int]],
        compiles: bool,
    ) -> ReductionTimes:
        calls.append((model, gpus, methods))
        named = visible["CUDA_VISIBLE_DEVICES"].split(",") if visible else ()
        assert [name[:4] for name in named] == ["GPU-"] * len(gpus or ())  # by UUID
        assert sorted(tower for group in groups for tower in group) == list(range(len(gpus or ())))
        place = End("cpu:0,1") if gpus is None else End.of_gpus(*gpus)
        sample = CollectiveRate(
            kind="allreduce",
            source=place,
            destination=place,
            algorithm="copy",
            model=model,
            bytes=2**27,
            median_us=50_000.0,
            median_gb_per_s=2.7,
            bus_gb_per_s=2.75,
        )
        return ReductionTimes(samples=Samples((sample,)), fixed_cost_us={"copy": 120.0})

    monkeypatch.setattr(reduction_bench, "measure", measure)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return calls


def test_all_gpus_are_reduced_over_unless_some_are_named(
    call: Call, on_scenario: ByName, asked: Asked
) -> None:
    on_scenario("four")
    done = call("bench-reduction", "--model", "alexnet")
    call("bench-reduction", "--model", "alexnet", "--gpus", "3,1", "--all-reduce", "ring")
    assert asked == [("alexnet", (0, 1, 2, 3), METHODS), ("alexnet", (3, 1), ("ring",))]
    assert done.code == 0
    assert "Reduction of the gradients of alexnet" in done.out
    for words in ("50.0", "2.70", "2.75", "gpu:0,1,2,3", "copy 0.12 ms"):
        assert words in done.out


def test_lost_and_hidden_gpus_are_left_out_and_refused_by_name(
    call: Call, on_scenario: ByName, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_scenario("four")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    call("bench-reduction", "--model", "alexnet")
    assert asked == [("alexnet", (1, 2), METHODS)]
    done = call("bench-reduction", "--model", "alexnet", "--gpus", "0,1")
    assert done.code == 2
    assert "GPU 0" in done.err


@pytest.mark.usefixtures("without_gpu")
def test_without_a_gpu_cpu_devices_reduce_and_that_is_reported(call: Call, asked: Asked) -> None:
    done = call("bench-reduction", "--model", "alexnet", "--json")
    assert asked == [("alexnet", None, METHODS)]
    assert done.code == 0
    assert any("CPU devices" in note for note in json.loads(done.out)["notes"])


@pytest.mark.usefixtures("with_broken_driver")
def test_a_broken_driver_is_no_reason_to_reduce_on_the_cpu(call: Call, asked: Asked) -> None:
    done = call("bench-reduction", "--model", "alexnet")
    assert (done.code, done.out, asked) == (3, "", [])


def test_options_that_cannot_be_are_refused_in_two_lines(call: Call) -> None:
    cases: list[tuple[list[str], str]] = [
        ([], "--model is missing"),
        (["--model", "alexnt"], "alexnet"),
        (["--model", "alexnet", "--save"], "there is no option '--save'"),
        (["--model", "alexnet", "--gpus", "0;1"], "0,1"),
    ]
    for arguments, words in cases:
        done = call("bench-reduction", *arguments)
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 2)
        assert words in done.err
