"""Xid errors: the numbers with which the NVIDIA kernel module reports what went wrong, and what they mean."""

from typing import NamedTuple

from gputopo.findings.finding import Severity


class Meaning(NamedTuple):
    """What one Xid says, how bad it is, and what to do. Faults of programs are warnings, of cards errors."""

    severity: Severity
    says: str
    remedy: str


_PROGRAM = "the program did something wrong: look there first (compute-sanitizer); a card is rarely the cause"
_RESET = (
    "end the work on this GPU, reset it (sudo nvidia-smi -r -i GPU) or reboot; if it comes again, replace "
    "the card"
)
_BUS = "check the seat, the riser, the power cables and the heat of this card; reboot or power-cycle"
_DRIVER = "update the driver; if it comes again, run nvidia-bug-report.sh and report it to NVIDIA"

# NVIDIA, "XID Errors" (docs.nvidia.com/deploy/xid-errors): the codes that owners of a box meet.
XIDS: dict[int, Meaning] = {
    13: Meaning("warning", "a program caused an exception in the graphics engine", _PROGRAM),
    31: Meaning("warning", "a program used an address that is not its own (MMU fault)", _PROGRAM),
    32: Meaning("warning", "the driver was given a broken command buffer, or the bus corrupted it", _BUS),
    38: Meaning("error", "the firmware of the driver failed", _DRIVER),
    43: Meaning("warning", "a program made the GPU stop processing for it", _PROGRAM),
    45: Meaning(
        "info", "the work of a program that ended was cleaned up", "none needed after a program was ended"
    ),
    48: Meaning("error", "a memory error of two bits was found", _RESET),
    61: Meaning("error", "the card's internal micro-controller stopped (breakpoint)", _RESET),
    62: Meaning("error", "the card's internal micro-controller halted", _RESET),
    63: Meaning("warning", "a failing memory row or page was noted for replacement", _RESET),
    64: Meaning("error", "a failing memory row or page could not be noted for replacement", _RESET),
    69: Meaning("warning", "a program caused an exception in the graphics engine's class", _PROGRAM),
    74: Meaning("error", "an NVLink failed", "nvidia-smi nvlink -s and -e; seat the bridge again; " + _RESET),
    79: Meaning("error", "the GPU has fallen off the bus", _BUS),
    92: Meaning("warning", "many single-bit memory errors are corrected", _RESET),
    94: Meaning("error", "a memory error hit one program, which was ended", _RESET),
    95: Meaning("error", "a memory error hit more than one program", _RESET),
    109: Meaning("warning", "the GPU did not switch between programs in time", _DRIVER),
    119: Meaning("error", "the card's system processor (GSP) did not answer in time", _DRIVER),
    120: Meaning("error", "the card's system processor (GSP) failed", _DRIVER),
    140: Meaning("error", "a memory error was not recovered from", _RESET),
}

_UNKNOWN = (
    "look the number up in NVIDIA's list of Xid errors; sudo dmesg | grep -i xid has the driver's own words"
)


def meaning(code: int) -> Meaning:
    """Give what an Xid means; one that is not in the table is a warning that is told as a number."""
    return XIDS.get(code) or Meaning("warning", "it is not in the table of known errors", _UNKNOWN)
