"""The errors that a user can act on. The command line catches `GputopoError` once and prints two lines.

Any other exception is a bug of gputopo, which also prints two lines but has a separate exit code.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The meaning of gputopo's exit codes. The exit code of a user's own program is returned unchanged."""

    OK = 0
    FINDINGS = 1  # findings, anomalies or hardware faults at or above --fail-on; always for corrupted data
    USAGE = 2  # bad usage or bad input
    HARDWARE = 3  # the hardware, the driver or the machine's resources do not allow it
    BUG = 70  # a bug of gputopo itself; never 1, which means findings (EX_SOFTWARE of sysexits.h)


class GputopoError(Exception):
    """An error with one line about what went wrong, and one line about what to do."""

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class UsageError(GputopoError):
    """An option or argument that cannot be used as given."""


class InputError(GputopoError):
    """A file that cannot be read or written as required."""


class FullDiskError(InputError):
    """A file that cannot be written because the disk is full or broken."""

    exit_code = ExitCode.HARDWARE


class NoPlanError(GputopoError):
    """No set of GPUs fulfils the request; the message has the best possible set."""


class HardwareError(GputopoError):
    """The hardware or its driver cannot do what was requested."""

    exit_code = ExitCode.HARDWARE
