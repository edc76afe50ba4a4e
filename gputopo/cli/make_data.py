"""`gputopo make-data`: a small data folder to try real input with."""

import contextlib
import shlex
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gputopo.cli.choices import require_choice, shown
from gputopo.cli.printing import emit
from gputopo.values.errors import InputError, UsageError

if TYPE_CHECKING:
    from gputopo.launch.data.folder import DataName

NAMES: "tuple[DataName, ...]" = ("imagenet", "cifar10")
_RANGES = {
    "--images": (2, 10_000_000),  # ImageNet has 1.3 million
    "--files": (1, 99_999),  # their names have five digits
    "--side": (8, 8192),
    "--seed": (0, 2**31 - 1),  # as that of run
}


def make_data(
    folder: Annotated[Path, typer.Argument(help="The folder to write. It must be new or empty.")],
    name: Annotated[
        str,
        typer.Option("--data-name", metavar="|".join(NAMES), help="TFRecords of ImageNet, or CIFAR-10."),
    ] = "imagenet",
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Take the images of this folder, one folder a class. Default: draw them."
        ),
    ] = None,
    images: Annotated[int | None, typer.Option("--images", help="How many to draw. Default: 256.")] = None,
    files: Annotated[
        int | None, typer.Option("--files", help="Training files of ImageNet. Default: 4.")
    ] = None,
    side: Annotated[
        int | None, typer.Option("--side", help="Shorter side of drawn images in pixels. Default: 256.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of drawn images, and of the order. Default: 1234.")
    ] = None,
) -> None:
    """Write a small valid data folder: TFRecords of ImageNet or the binary files of CIFAR-10.

    Exit codes: 0 fine; 2 bad input; 3 it cannot be written. Then nothing is left behind.
    """
    chosen = require_choice("--data-name", name, NAMES)
    given = {"--images": images, "--files": files, "--side": side, "--seed": seed}
    for option, (least, most) in _RANGES.items():
        value = given[option]
        if value is not None and not least <= value <= most:
            raise UsageError(f"{option} cannot be {shown(str(value))[1:-1]}", f"give {least} to {most}")
    _refuse_needless(given, chosen, drawn=source is None)
    from gputopo.launch.data.make import Request, make
    from gputopo.report import units

    asked = {"count": images, "files": files, "side": side, "seed": seed}
    request = Request(chosen, source, **{field: value for field, value in asked.items() if value is not None})
    with _ended_tidily():
        done = make(_place(folder), request)
    emit(
        f"{done.folder}: {units.counted(done.train, 'image')} to train with and {done.validation} for "
        f"validation, {units.size(done.bytes)}.\n"
        f"Train with them: gputopo run --model {'resnet20' if chosen == 'cifar10' else 'resnet50'} "
        f"--data-dir {shlex.quote(str(done.folder))}\n"
    )


@contextlib.contextmanager
def _ended_tidily() -> Iterator[None]:
    """Let SIGTERM end the work as Ctrl-C does, so that nothing unfinished is left behind."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse_needless(given: Mapping[str, int | None], name: str, *, drawn: bool) -> None:
    """Raise UsageError for an option that would do nothing."""
    for option in ("--images", "--side"):
        if given[option] is not None and not drawn:
            raise UsageError(
                f"{option} does not go with --from: it is of images that are drawn", f"leave {option} out"
            )
    if given["--files"] is not None and name == "cifar10":
        raise UsageError(
            "--files does not go with --data-name cifar10: that has five training files",
            "leave --files out, or use --data-name imagenet",
        )


def _place(folder: Path) -> Path:
    """Give the absolute path, `~` read as the shell does.

    Raises InputError for a home that is not known, or where the working folder is gone.
    """
    try:
        return folder.expanduser().absolute()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{folder} cannot be found: {why}", "name the folder by its whole path") from error
