"""`gputopo make-data`: a small data folder to try real input with."""

import contextlib
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from gputopo.cli.printing import emit
from gputopo.values.errors import InputError
from gputopo.values.option import Option


def make_data(
    folder: Annotated[Path, Option("FOLDER", "Folder to write; must be new or empty")],
    name: Annotated[
        Literal["imagenet", "cifar10"], Option("--data-name", "TFRecords of ImageNet, or CIFAR-10")
    ] = "imagenet",
    images: Annotated[
        int | None, Option("--images", "Number of images", default="256", min=2, max=10000000)
    ] = None,
    files: Annotated[
        int | None, Option("--files", "Training files of ImageNet", default="4", min=1, max=99999)
    ] = None,
    side: Annotated[
        int | None, Option("--side", "Shorter side of images (pixels)", default="256", min=8, max=8192)
    ] = None,
    seed: Annotated[
        int | None, Option("--seed", "Random seed of images", default="1234", min=0, max=2147483647)
    ] = None,
) -> None:
    """Generate a small data set for testing: ImageNet TFRecords or CIFAR-10 binary files.

    Exit codes: 0 fine; 2 bad input; 3 the folder cannot be written (no files remain).
    """
    from gputopo.launch import DataRequest
    from gputopo.launch import make_data as write_data
    from gputopo.report import size

    asked = {"count": images, "files": files, "side": side, "seed": seed}
    request = DataRequest(name, **{field: value for field, value in asked.items() if value is not None})
    try:
        folder = folder.expanduser().absolute()
    except (OSError, RuntimeError) as error:  # an unknown home; the working folder does not exist any more
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{folder} cannot be found: {why}", "give the full path of the folder") from error
    with _ended_tidily():
        done = write_data(folder, request)
    emit(
        f"{done.folder}: {done.train:,} image{'' if done.train == 1 else 's'} for training and "
        f"{done.validation} for validation, {size(done.bytes)}.\nTrain with them: gputopo run --model "
        f"{'resnet20' if name == 'cifar10' else 'resnet50'} --data-dir {shlex.quote(str(done.folder))}\n"
    )


@contextlib.contextmanager
def _ended_tidily() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that no unfinished files remain."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
