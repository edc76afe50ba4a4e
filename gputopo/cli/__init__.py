"""The command `gputopo`: parse, call, print. Errors are caught here, once."""

import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from gputopo.cli import printing
from gputopo.public_names import exports
from gputopo.report import drop_unwritten, show_error, to_stderr
from gputopo.values.errors import ExitCode, GputopoError

if TYPE_CHECKING:
    from gputopo.cli.commands import COMMANDS as COMMANDS
    from gputopo.cli.commands import invoke as invoke
    from gputopo.cli.commands import options_of_command as options_of_command

_MODULES = {"COMMANDS": "commands", "invoke": "commands", "options_of_command": "commands"}
__all__ = [*_MODULES, "main", "run_command"]
__getattr__ = exports(__name__, _MODULES)

# Loading modules creates 100,000 objects and no garbage. With Python's threshold of 700, a tenth of the time
# of a short command would go to looking for garbage.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_INTERRUPTED = 128 + signal.SIGINT
_BROKEN_PIPE = 128 + signal.SIGPIPE
TRACEBACK = "GPUTOPO_TRACEBACK"


def main() -> NoReturn:
    """Run the command line of this process and end it with its exit code."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by the entry point while it loaded this
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run_command(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a further Ctrl-C does not change the code
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Data goes to stdout; errors, in two lines, to stderr."""
    try:
        _prepare_streams()
        code = _dispatch(list(arguments))
        printing.emit("")
        return code
    except SystemExit as ended:
        return int(ended.code or 0)
    except GputopoError as error:
        show_error(error.what, error.hint)
        return int(error.exit_code)
    except KeyboardInterrupt:
        to_stderr("gputopo: interrupted\n")
        return _INTERRUPTED
    except BrokenPipeError as error:
        for stream in (sys.stdout, sys.stderr):
            drop_unwritten(stream, error)
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 (a bug must not look like findings)
        return _report(error)


def _dispatch(arguments: list[str]) -> int:
    if (line := os.environ.get("_GPUTOPO_COMPLETE")) is not None:
        from gputopo.cli import completion

        printing.emit("".join(f"{word}\n" for word in completion.candidates(line)))
        return 0
    from gputopo.cli import commands

    return commands.invoke(arguments)


def _report(error: Exception) -> int:
    """Print in two lines why a command failed, and return its exit code.

    If the system had no memory, address space, process or thread for this process, that is the reason. Else
    gputopo failed: where, and what to send; all with GPUTOPO_TRACEBACK=1.
    """
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE))
        or any(words in str(error) for words in ("failed to map segment", "can't start new thread"))
    ):
        show_error(
            f"out of system resources: {(str(error) or type(error).__name__)[:200]}",
            "see the free memory, and the limits on open files (ulimit -n), processes (-u) and memory (-v)",
        )
        return int(ExitCode.HARDWARE)
    import traceback

    if os.environ.get(TRACEBACK):
        to_stderr(traceback.format_exc())
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(last.filename)}:{last.lineno}"
    show_error(
        f"a bug of gputopo: {f'{type(error).__name__}: {error}'[:200]} ({where})",
        f"Report it with the input and the output of the same command with {TRACEBACK}=1",
    )
    return int(ExitCode.BUG)


def _prepare_streams() -> None:
    """Open /dev/null for closed streams (`>&-`, `2>&-`).

    Otherwise a file opened later gets their number, and messages to a missing stderr end up in stdout.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # A stream in ASCII gets question marks, not a traceback.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
