import pytest

from gputopo.report import document_text, inspection_document
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import (
    Bar1Mib,
    Ecc,
    Gpu,
    GpuProcess,
    Link,
    Machine,
    MemoryMib,
    Mig,
    NvLink,
    Pcie,
    RemappedRows,
    RetiredPages,
    Throttle,
    UtilizationPercent,
)
from gputopo.values.subject import Subject
from tests.report.shown import rows_of

SLOW = Pcie(gen_now=1, gen_max=3, width_now=16, width_max=16)


def gpu(index: int = 0, pstate: str = "P0", mask: int = 0, load: int = 90, pcie: Pcie = SLOW) -> Gpu:
    return Gpu(
        index=index,
        pstate=pstate,
        throttle=Throttle(mask=mask),
        utilization_percent=UtilizationPercent(gpu=load),
        pcie=pcie,
    )


def health(machine: Machine, *findings: Finding) -> list[tuple[str, str]]:
    """The rows on the health of the GPUs."""
    return rows_of(inspection_document(Inspection(machine=machine, findings=findings), "all"), "Health")


def health_words(gpu: Gpu) -> list[str]:
    """What is shown of the health of one GPU."""
    joined = (Link(a=0, b=1, nvlinks=12),)  # the matrix shows NVLinks
    return [words for _, words in health(Machine(source="x", gpus=(gpu,), links=joined))]


@pytest.mark.parametrize(
    ("gpu", "sleeps"),
    [
        (gpu(mask=1), True),
        (gpu(load=0), True),
        (gpu(), False),
        (gpu(pstate="P8", pcie=Pcie(gen_now=3, gen_max=3)), False),
        (Gpu(index=0, pcie=SLOW), True),
    ],
)
def test_a_low_generation_has_a_mark_on_a_gpu_that_was_not_seen_under_load(gpu: Gpu, sleeps: bool) -> None:
    document = inspection_document(Inspection(machine=Machine(source="x", gpus=(gpu,))), "all")
    assert ("*" in document_text(document)) is sleeps


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (Gpu(index=0, ecc=Ecc(mode=False, corrected_volatile=0)), "ECC is off"),
        (
            Gpu(index=0, ecc=Ecc(corrected_volatile=3)),
            "corrected ECC errors: 3 since",
        ),
        (Gpu(index=0, remapped_rows=RemappedRows(correctable=2)), "2 memory rows remapped"),
        (Gpu(index=0, pcie=Pcie(replay_counter=9)), "PCIe replays: 9"),
        (Gpu(index=0, pcie=Pcie(aer={"correctable": 0, "fatal": 1})), "PCIe errors (AER): fatal 1"),
        (Gpu(index=0, nvlinks=(NvLink(link=0, active=True), NvLink(link=1, active=False))), "1 down, of 2"),
        (Gpu(index=0, nvlinks=(NvLink(link=4, active=True, errors={"crc_flit": 7}),)), "NVLink 4 errors"),
        (Gpu(index=0, bar1_mib=Bar1Mib(total=256), memory_mib=MemoryMib(total=8192)), "BAR1 of 256 MiB"),
    ],
)
def test_what_is_not_as_it_should_be_is_reported(gpu: Gpu, words: str) -> None:
    said = health_words(gpu)
    assert len(said) == 1
    assert words in said[0]


def test_a_gpu_that_is_as_it_should_be_or_shows_nothing_has_no_line() -> None:
    sound = Gpu(
        index=1,
        throttle=Throttle(mask=1, reasons=("gpu_idle",)),
        ecc=Ecc(mode=True, mode_pending=True, corrected_volatile=0, counts={"dram": 0}),
        remapped_rows=RemappedRows(correctable=0, uncorrectable=0, pending=False, failure=False),
        retired_pages=RetiredPages(single_bit=0, double_bit=0, pending=False),
        mig=Mig(mode=False, mode_pending=False),
        compute_mode="default",
        persistence_mode=True,
        virtualization="none",
        pcie=Pcie(replay_counter=0, aer={"fatal": 0}),
        nvlinks=(NvLink(link=0, active=True, errors={"replay": 0}),),
        bar1_mib=Bar1Mib(total=16384),
        memory_mib=MemoryMib(total=16384),
    )
    capped_while_idle = Gpu(index=2, throttle=Throttle(mask=0x4), pstate="P8")  # A40 and RTX 5090
    assert health(Machine(source="x", gpus=(Gpu(index=0), sound, capped_while_idle))) == []


def test_what_several_gpus_share_is_reported_once_and_not_what_a_finding_reports() -> None:
    replays = Pcie(replay_counter=90)
    gpus = tuple(Gpu(index=n, display_active=n == 2, pcie=replays) for n in range(4))
    found = Finding(id="pcie.replays", severity="info", subject=Subject.parse("gpus:0-2"), says="90 replays")
    assert health(Machine(source="x", gpus=gpus), found) == [
        ("GPU 2", "drives a display"),
        ("GPU 3", "PCIe replays: 90"),
    ]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("C:\\Users\\ann\\python.exe", "python.exe"),
        ("/usr/lib/xorg/Xorg", "Xorg"),
        (None, "name unknown"),
    ],
)
def test_a_program_is_named_by_its_own_name(name: str | None, short: str) -> None:
    assert health_words(Gpu(index=0, processes=(GpuProcess(pid=7, name=name),))) == [f"process 7 {short}"]


def test_nvlinks_that_work_are_reported_where_neither_matrix_nor_tree_shows_them() -> None:
    links = tuple(NvLink(link=number, active=True, gb_per_s=25.0) for number in range(12))
    machine = Machine(
        source="nvidia-smi nvlink", gpus=(Gpu(index=0, nvlinks=links), Gpu(index=1, nvlinks=links))
    )
    assert health(machine) == [("GPUs 0-1", "NVLinks: 12 up, 25 GB/s per direction")]
    joined = Machine(source="x", gpus=machine.gpus, links=(Link(a=0, b=1, nvlinks=12),))
    assert health(joined) == []
