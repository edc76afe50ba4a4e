"""`nvidia-smi dmon`: each line a row of a series of samples."""

import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu

HEAD = """\
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
"""
IDLE = "    0     25     35      -      0      0      0      0      0      0    405    210\n"
BUSY = "    0    325     65     71     98     40      0      0      0      0   9501   1980\n"
OTHER = IDLE.replace("    0     25", "    1     27")


def of(text: str) -> Gpu:
    (gpu,) = read_text(text, origin="x").gpus
    return gpu


def test_a_line_shows_the_load_of_a_gpu() -> None:
    gpu = of(HEAD + BUSY)
    assert (gpu.power_w.draw, gpu.temperature_c.gpu, gpu.temperature_c.memory) == (325.0, 65, 71)
    assert (gpu.utilization_percent.gpu, gpu.utilization_percent.memory) == (98, 40)
    assert (gpu.clocks_mhz.memory.now, gpu.clocks_mhz.sm.now) == (9501, 1980)
    assert of(HEAD + IDLE).temperature_c.memory is None


def test_rows_of_one_gpu_are_samples() -> None:
    rows = f"{HEAD}{IDLE}{OTHER}{BUSY}{OTHER}{HEAD}{IDLE}{OTHER}"
    machine = read_text(f"$ nvidia-smi dmon\n{rows}", origin="x")
    assert (machine.source, len(machine.gpus), machine.unread) == ("nvidia-smi dmon", 2, ())
    loads = [sample.gpus[0]["utilization_percent.gpu"] for sample in machine.samples]
    assert set(loads) == {0, 98}


def test_the_time_of_a_row_is_read() -> None:
    head = "#Date, Time, gpu, pwr, gtemp\n#YYYYMMDD, HH:MM:SS, Idx, W, C\n"
    row = "20240305, 10:01:02, 0, 325, 65\n"
    later = row.replace("10:01:02", "10:01:03").replace("325", "25")
    machine = read_text(head + row + later, origin="x")
    times = [sample.time for sample in machine.samples]
    assert times == ["2024-03-05T10:01:02.000", "2024-03-05T10:01:03.000"]
    assert (machine.gpus[0].power_w.draw, machine.unread) == (25.0, ())


def test_errors_memory_and_violations_are_read_and_other_columns_are_not() -> None:
    text = (
        "# gpu     fb   bar1  sbecc  dbecc    pci  rxpci  txpci  pviol  tviol\n"
        "# Idx     MB     MB   errs   errs   errs   MB/s   MB/s      %   bool\n"
        "    0   1234      5      7      2      0     10     20     {}\n"
    )
    gpu = of(text.format("38      1"))
    assert (gpu.memory_mib.used, gpu.ecc.corrected_aggregate, gpu.ecc.uncorrected_aggregate) == (1234, 7, 2)
    assert gpu.throttle.reasons == ("sw_power_cap", "sw_thermal_slowdown")
    assert of(text.format(" 0      1")).throttle.reasons == ("sw_thermal_slowdown",)
    assert of(text.format(" -      0")).throttle.reasons is None  # other reasons are not in this output


def test_columns_without_a_row_are_refused() -> None:
    with pytest.raises(InputError, match="no line of a GPU"):
        read_text(HEAD, origin="x")
