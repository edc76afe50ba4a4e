"""`gputopo make-data`: a small data folder to try real input with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gputopo.cli.choices import require_choice
from gputopo.cli.printing import emit
from gputopo.errors import UsageError

if TYPE_CHECKING:
    from gputopo.launch.data_folder import DataName

NAMES: "tuple[DataName, ...]" = ("imagenet", "cifar10")
_MOST_FILES = 99_999  # their names have five digits


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
    images: Annotated[int, typer.Option("--images", help="How many to draw.")] = 256,
    files: Annotated[int, typer.Option("--files", help="Training files of ImageNet.")] = 4,
    side: Annotated[int, typer.Option("--side", help="Shorter side of drawn images in pixels.")] = 256,
    seed: Annotated[int, typer.Option("--seed", help="Of drawn images, and of the order.")] = 1234,
) -> None:
    """Write a small valid data folder: TFRecords of ImageNet or the binary files of CIFAR-10.

    Exit codes: 0 fine; 2 bad input, or it cannot be written (then nothing is left behind).
    """
    chosen = require_choice("--data-name", name, NAMES)
    for option, value, least, most in (
        ("--images", images, 2, None),
        ("--files", files, 1, _MOST_FILES),
        ("--side", side, 8, 8192),
        ("--seed", seed, 0, None),
    ):
        if value < least or (most is not None and value > most):
            rule = f"{least} or more" if most is None else f"{least} to {most}"
            raise UsageError(f"{option} cannot be {value}", f"give {rule}")
    from gputopo.launch.core.inputs.make_data import Wish, make

    wish = Wish(name=chosen, images=source, count=images, files=files, side=side, seed=seed)
    done = make(folder.absolute(), wish)
    emit(
        f"{done.folder}: {done.train} images to train with and {done.validation} for validation, "
        f"{done.bytes / 2**20:.1f} MiB.\n"
        f"Train with them: gputopo run --model {'resnet20' if chosen == 'cifar10' else 'resnet50'} "
        f"--data-dir {done.folder}\n"
    )
