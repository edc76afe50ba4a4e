"""Starting CUDA: what a machine has, and each reason why it does not start."""

import contextlib
import ctypes
import os

import pytest

from gputopo.probes.cuda import CallLog, NoCudaError, open_cuda
from tests.probes.cuda.doubled import alone, box, h2d, measure, needs_gcc, run
from tests.probes.cuda.engine_worker import Task


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@needs_gcc
def test_devices_are_reported_as_the_rest_of_gputopo_names_them() -> None:
    spec = box("8two")
    report = measure(spec, [])
    assert report.driver_version == f"{spec.settings.driver // 1000}.{spec.settings.driver % 1000 // 10}"
    assert list(report.devices) == [(number, gpu.address.lower()) for number, gpu in enumerate(spec.gpus)]


@needs_gcc
@pytest.mark.parametrize(
    ("words", "reason", "remedy"),
    [
        (("init=100",), "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"),
        (("init=803",), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"),
        (("init=802",), "CUDA_ERROR_SYSTEM_NOT_READY", "fabricmanager"),
        (("init=35",), "CUDA_ERROR_35", "gputopo inspect"),
        (("oldsymbols=cuInit",), "LIBRARY_ODD", "install"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_why_cuda_does_not_start_is_reported_with_a_remedy(
    words: tuple[str, ...], reason: str, remedy: str
) -> None:
    refused = measure(box("2x4", *words), []).refused
    assert refused is not None
    assert refused[0] == reason
    assert remedy in refused[2]
    assert "\n" not in refused[1]


@needs_gcc
@pytest.mark.parametrize("driver", ["12040", "12080"])
def test_copies_are_timed_by_drivers_with_the_first_and_the_second_elapsed_time(
    driver: str,
) -> None:
    """cuda-bindings 13 finds no cuEventElapsedTime in a driver of CUDA 12.7 or earlier."""
    spec = box("2x4", f"driver={driver}")
    (copy,) = measure(spec, [alone(h2d(0))]).windows[0].copies
    assert copy.failure is None
    assert copy.gb_per_s == pytest.approx(spec.rate("h2d", 0) / 1e9, rel=0.03)


@pytest.mark.skipif(_has_driver(), reason="this machine has libcuda.so.1")
def test_a_machine_without_the_library_reports_it() -> None:
    refused = run(Task(), os.environ).refused
    assert refused is not None
    assert refused[0] == "LIBRARY_MISSING"
    assert "libcuda.so.1" in refused[1]


SETTINGS = {
    "CUDA_MODULE_LOADING": "EAGER",
    "CUDA_LAUNCH_BLOCKING": "0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
}


class Environment(CallLog):
    """What is in the environment when CUDA starts."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def begin(self, function: str, ordinal: int | None) -> None:
        self.seen = self.seen or {name: text for name, text in os.environ.items() if name.startswith("CUDA_")}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        (
            {"CUDA_MODULE_LOADING": "LAZY", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        ),
        # The user chose devices: they are counted in the user's order.
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1"}),
    ],
)
def test_what_cuda_reads_at_its_start_is_set_and_put_back(
    given: dict[str, str], added: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("CUDA_")]:
        monkeypatch.delenv(name)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    log = Environment()
    with contextlib.suppress(NoCudaError), open_cuda(log):
        pass
    assert log.seen == SETTINGS | added
    assert {name: text for name, text in os.environ.items() if name.startswith("CUDA_")} == given
