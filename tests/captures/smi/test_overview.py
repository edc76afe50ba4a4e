"""The table of `nvidia-smi` without options: all eras, written here and read back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, GpuProcess
from tests.captures.samples import in_turn

# Widths of the three columns, by era; the titles; whether the third line (MIG) is there.
ERAS: dict[str, tuple[tuple[int, int, int], str, bool]] = {
    "418": ((31, 22, 22), "Persistence-M", False),
    "550": ((41, 24, 22), "Persistence-M", True),
    "Windows": ((41, 24, 22), "Driver-Model", True),
}
VERSIONS = {
    "418": "| NVIDIA-SMI 418.67       Driver Version: 418.67       CUDA Version: 10.1     |",
    "550": "| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |",
    "Windows": "| NVIDIA-SMI 591.86                 KMD Version: 591.86        CUDA UMD Version: 13.1     |",
}
Row = dict[str, str]
ROW: Row = {
    "index": "0",
    "name": "NVIDIA L40S",
    "mode": "On",
    "address": "00000000:3B:00.0",
    "display": "Off",
    "ecc": "0",
    "fan": "N/A",
    "temperature": "43C",
    "pstate": "P0",
    "draw": "87W",
    "limit": "350W",
    "used": "1234MiB",
    "total": "46068MiB",
    "utilization": "90%",
    "compute": "Default",
    "mig": "Disabled",
}


def line(cells: list[str]) -> str:
    return f"|{'|'.join(cells)}|\n"


def table(era: str, rows: list[Row], processes: str = "") -> str:
    (left, middle, right), mode, mig = ERAS[era]
    rule = f"+{'-' * left}+{'-' * middle}+{'-' * right}+\n"
    titles = line(
        [f" GPU  Name {mode:>{left - 11}}", " Bus-Id        Disp.A ".ljust(middle), " Volatile Uncorr. ECC"]
    )
    titles += line(
        [
            " Fan  Temp  Perf  Pwr:Usage/Cap".ljust(left),
            "Memory-Usage ".rjust(middle),
            " GPU-Util  Compute M. ",
        ]
    )
    if mig:
        titles += line([" " * left, " " * middle, "MIG M. ".rjust(right)])
    double = f"|{'=' * left}+{'=' * middle}+{'=' * right}|\n"
    text = f"Tue Mar  5 10:01:02 2024       \n{rule}{VERSIONS[era]}\n{rule}{titles}{double}"
    for row in rows:
        name = f"{row['index']:>4}  {row['name']}"
        text += line(
            [
                name + f"{row['mode']} ".rjust(left - len(name)),
                f" {row['address']} {row['display']} ".rjust(middle),
                f"{row['ecc']} ".rjust(right),
            ]
        )
        readings = f"{row['fan']:>4}  {row['temperature']:>4}  {row['pstate']:>4}"
        power = f"{row['draw']} / {row['limit']}"
        text += line(
            [
                readings + power.rjust(left - len(readings) - 1) + " ",
                f"{row['used']} / {row['total']} ".rjust(middle),
                f"{row['utilization']:>8} {row['compute'].rjust(12)} ".ljust(right),
            ]
        )
        if mig:
            text += line([" " * left, " " * middle, f"{row['mig']} ".rjust(right)])
        text += rule
    return text + processes


def processes(*rows: str, width: int = 77) -> str:
    rule = f"+{'-' * width}+\n"
    titles = [" Processes:", "  GPU   GI   CI        PID   Type   Process name                  GPU Memory "]
    body = rows or ("  No running processes found",)
    return "\n" + rule + "".join(line([one.ljust(width)]) for one in [*titles, "=" * width, *body]) + rule


def only(text: str) -> Gpu:
    (gpu,) = read_text(text, origin="x").gpus
    return gpu


@pytest.mark.parametrize("era", ERAS)
def test_every_fact_of_the_table_is_read(era: str) -> None:
    mode = "WDDM" if era == "Windows" else "On"
    machine = read_text(table(era, [ROW | {"mode": mode}], processes()), origin="x")
    (gpu,) = machine.gpus
    assert (gpu.index, gpu.name, gpu.pci_address) == (0, "NVIDIA L40S", "0000:3b:00.0")
    assert (gpu.ecc.mode, gpu.ecc.uncorrected_volatile, gpu.display_active) == (True, 0, False)
    assert (gpu.fan_percent, gpu.temperature_c.gpu, gpu.pstate) == (None, 43, "P0")
    assert (gpu.power_w.draw, gpu.power_w.limit) == (87.0, 350.0)
    assert (gpu.memory_mib.used, gpu.memory_mib.total, gpu.utilization_percent.gpu) == (1234, 46068, 90)
    assert (gpu.compute_mode, gpu.processes) == ("default", ())
    assert gpu.persistence_mode is (None if era == "Windows" else True)
    assert gpu.mig.mode is (False if ERAS[era][2] else None)
    version = VERSIONS[era].split()[2]
    assert (machine.driver.version, machine.driver.status) == (version, "ok")
    assert machine.driver.cuda_version == VERSIONS[era].split()[-2]
    assert machine.unread == ()
    assert [sample.time for sample in machine.samples] == ["2024-03-05T10:01:02"]


CELLS: dict[str, tuple[Row, dict[str, object]]] = {
    "no ECC": ({"ecc": "N/A"}, {"ecc.mode": None}),
    "cut name": ({"name": "GeForce RTX 208..."}, {"name": None}),
    "errors": (
        {"fan": "ERR!", "temperature": "ERR!", "pstate": "ERR!", "draw": "N/A", "limit": "N/A"},
        {"temperature_c.gpu": None, "pstate": None, "power_w.draw": None},
    ),
    "exclusive": ({"compute": "E. Process"}, {"compute_mode": "exclusive_process"}),
    "MIG": ({"mig": "Enabled"}, {"mig.mode": True, "mig.mode_pending": None}),
    "MIG pending": ({"mig": "Enabled*"}, {"mig.mode": True, "mig.mode_pending": False}),
}


@pytest.mark.parametrize(("name", "era"), in_turn(CELLS, ["550", "Windows"]))
def test_each_cell_is_a_value_or_a_reason(name: str, era: str) -> None:
    change, facts = CELLS[name]
    machine = read_text(table(era, [ROW | change]), origin="x")
    assert machine.unread == ()
    for path, expected in facts.items():
        value: object = machine.gpus[0]
        for part in path.split("."):
            value = getattr(value, part)
        assert value == expected, path
    if name == "cut name":
        assert machine.missing["gpus[0].name"] == "cut in the table: GeForce RTX 208..."


def test_processes_are_read_with_their_programs() -> None:
    rows = (
        "    0   N/A  N/A      1234      C   python                           1234MiB ",
        "    0   N/A  N/A      1235    C+G   ...miniconda3/envs/x/bin/python3   12MiB ",
        "    0   N/A  N/A      1236      G   ...some folder                      1MiB ",
        "    0     1    0      1237      C                                       N/A  ",
        "    1      1238      C   /usr/bin/python                          1MiB ",
    )
    gpus = read_text(
        table("550", [ROW, ROW | {"index": "1", "address": "00000000:5E:00.0"}], processes(*rows)), origin="x"
    ).gpus
    assert gpus[0].processes == (
        GpuProcess(pid=1234, kind="compute", name="python", memory_mib=1234),
        GpuProcess(pid=1235, kind="compute+graphics", name="python3", memory_mib=12),
        GpuProcess(pid=1236, kind="graphics", memory_mib=1),
        GpuProcess(pid=1237, kind="compute"),
    )
    assert gpus[1].processes == (GpuProcess(pid=1238, kind="compute", name="python", memory_mib=1),)


def test_without_the_table_of_processes_nothing_is_known_of_them() -> None:
    assert only(table("550", [ROW])).processes is None
    row = "    0                  Not Supported                                         "
    machine = read_text(table("550", [ROW], processes(row)), origin="x")
    assert machine.gpus[0].processes is None
    assert machine.missing["gpus[0].processes"] == "Not Supported"


def test_instances_are_counted() -> None:
    mig = (
        "+------------------+----------------------+-----------+-----------------------+\n"
        "| MIG devices:                                                                |\n"
        "+------------------+----------------------+-----------+-----------------------+\n"
        "| GPU  GI  CI  MIG |         Memory-Usage |        Vol|         Shared        |\n"
        "|      ID  ID  Dev |           BAR1-Usage | SM     Unc| CE  ENC  DEC  OFA  JPG|\n"
        "|                  |                      |        ECC|                       |\n"
        "|==================+======================+===========+=======================|\n"
        "|  0    7   0   0  |      3MiB /  4864MiB | 14      0 |  1   0    0    0    0 |\n"
        "|                  |      0MiB /  8191MiB |           |                       |\n"
        "+------------------+----------------------+-----------+-----------------------+\n"
        "|  0    8   0   1  |      3MiB /  4864MiB | 14      0 |  1   0    0    0    0 |\n"
        "|                  |      0MiB /  8191MiB |           |                       |\n"
        "+------------------+----------------------+-----------+-----------------------+\n"
    )
    machine = read_text(table("550", [ROW | {"mig": "Enabled"}]) + mig + processes(), origin="x")
    assert (machine.gpus[0].mig.instances, machine.unread) == (2, ())


def test_a_gpu_that_does_not_answer_is_lost() -> None:
    silent = "Unable to determine the device handle for GPU1: 0000:5E:00.0: Unknown Error\n"
    for text in (table("550", [ROW]) + silent, silent + table("550", [ROW])):
        machine = read_text(text, origin="x")
        assert [(gpu.index, gpu.lost) for gpu in machine.gpus] == [(0, False), (1, True)]
        assert machine.unread == ()


def test_rows_without_the_head_of_the_table_are_read_and_unified_memory_is_not_known() -> None:
    text = (
        "|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |\n"
        "| N/A   36C    P8              3W /  N/A  | Not Supported          |      0%      Default |\n"
        "|                                         |                        |                  N/A |\n"
    )
    machine = read_text(text, origin="x")
    (gpu,) = machine.gpus
    assert (gpu.pci_address, gpu.temperature_c.gpu, gpu.memory_mib.total) == ("000f:01:00.0", 36, None)
    assert machine.unread == ()


def test_tables_one_below_the_other_are_samples() -> None:
    later = table("550", [ROW | {"utilization": "5%"}]).replace("10:01:02", "10:01:07")
    machine = read_text(table("550", [ROW]) + later, origin="x")
    loads = [sample.gpus[0]["utilization_percent.gpu"] for sample in machine.samples]
    assert (loads, len(machine.gpus)) == ([90, 5], 1)


def test_tables_of_two_machines_are_refused() -> None:
    with pytest.raises(InputError, match="two machines"):
        read_text(table("550", [ROW]) + table("418", [ROW]), origin="x")


@given(
    st.fixed_dictionaries(
        {
            "name": st.from_regex(r"[A-Z][A-Za-z]{2,6} [A-Z]?[0-9]{2,4}( Ti)?", fullmatch=True),
            "mode": st.sampled_from(["On", "Off"]),
            "temperature": st.integers(0, 120).map(lambda n: f"{n}C"),
            "draw": st.integers(0, 1200).map(lambda n: f"{n}W"),
            "used": st.integers(0, 200_000).map(lambda n: f"{n}MiB"),
            "utilization": st.integers(0, 100).map(lambda n: f"{n}%"),
            "ecc": st.sampled_from(["0", "12", "Off", "N/A"]),
        }
    ),
    st.sampled_from(["418", "550"]),
)
@settings(deadline=None)
def test_any_row_is_read_as_written(cells: Row, era: str) -> None:
    gpu = only(table(era, [ROW | cells]))
    assert gpu.name == cells["name"]
    assert gpu.persistence_mode is (cells["mode"] == "On")
    assert f"{gpu.temperature_c.gpu}C" == cells["temperature"]
    assert gpu.power_w.draw == float(cells["draw"][:-1])
    assert f"{gpu.memory_mib.used}MiB" == cells["used"]
    assert f"{gpu.utilization_percent.gpu}%" == cells["utilization"]
