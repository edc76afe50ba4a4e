"""The errors a person can act on. The command line catches `GputopoError` once and prints two lines.

Anything else that is raised is a bug of gputopo: two lines as well, and an exit code of its own.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What gputopo's exit codes mean; a user's own program passes its own code through."""

    OK = 0
    FINDINGS = 1  # findings, anomalies or hardware faults at or above --fail-on; corrupted data always
    USAGE = 2  # bad usage or bad input
    HARDWARE = 3  # the hardware, the driver or the machine's resources cannot do it
    BUG = 70  # a bug of gputopo itself, never 1, which means findings (EX_SOFTWARE of sysexits.h)


class GputopoError(Exception):
    """One line of what went wrong, and one line of what to do about it."""

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class UsageError(GputopoError):
    """An option or argument that cannot be used as it was given."""


class InputError(GputopoError):
    """A file that cannot be read as what it should be, or written where it should go."""


class FullDiskError(InputError):
    """A file that cannot be written as the disk is full or broken."""

    exit_code = ExitCode.HARDWARE


class NoPlanError(GputopoError):
    """No set of GPUs fulfils the request; the message holds the best set there was."""


class HardwareError(GputopoError):
    """The hardware or its driver cannot do what was asked."""

    exit_code = ExitCode.HARDWARE
