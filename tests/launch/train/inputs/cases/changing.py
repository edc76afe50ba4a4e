"""Files that change while a run reads them. Their labels are 1 to 3, 4 to 6 and 7 to 9."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import error_of, joint, source, spec_of

CHANGED = "train-00001-of-00003"
STEPS = 40  # of six images: what was read ahead of the change is used up long before the last ones


def changing(root: Path) -> Any:
    """What runs accept and report after a change, or how they end."""
    results: dict[str, Any] = {}
    for policy, change in WAYS:
        data = folders.damaged(root / f"{change.__name__}-{policy}", "none")
        with source(spec_of(data, batch=3, bad_records=policy)) as made:
            taken = joint(made.feed(0))[1].tolist()
            change(data)

            def go_on(made: Any = made, taken: list[int] = taken) -> None:
                for step in range(1, STEPS):
                    taken.extend(joint(made.feed(step))[1].tolist())

            error = error_of(go_on)
            results[f"{change.__name__}-{policy}"] = {
                "last": taken[-24:],
                "error": error,
                "says": made.notices[-1],
            }
    return results


def not_opened(root: Path) -> Any:
    """What the reader and the look at the sizes of pictures make of a file that was removed before them."""
    import tensorflow as tf

    from gputopo.launch.train.inputs import factory
    from gputopo.launch.train.inputs.records import BadRecords, Care, Readings, careful

    data = folders.damaged(root / "not_opened", "none")
    (data / CHANGED).unlink()
    paths = [data / f"train-{shard:05d}-of-00003" for shard in range(3)]
    bad = BadRecords("skip")
    care = Care(1, Readings())
    care.begin(bad)
    records = careful(paths, tf.data.Dataset.range(3), care)
    return {
        "read": [[int(file), int(number)] for file, number, _ in records],
        "bad": bad.notices,
        "growth": factory.decoded_growth(paths[1:2]),
    }


def removed(data: Path) -> None:
    (data / CHANGED).unlink()


def all_removed(data: Path) -> None:
    for path in data.iterdir():
        path.unlink()


def cut(data: Path) -> None:
    path = data / CHANGED
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


WAYS: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("stop", removed),
    ("skip", removed),
    ("skip", all_removed),
    ("skip", cut),
)
