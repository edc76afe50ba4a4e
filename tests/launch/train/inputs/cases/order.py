"""Which examples come, in which order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gputopo.values.run.events import Event, Step
from gputopo.values.run.spec import CacheForm, Lifecycle
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import (
    Picture,
    error_of,
    joint,
    source,
    spec_of,
    steps,
)

FAR = 30 * 10**9  # an image that no run reads up to


def order(root: Path) -> Any:
    data = folders.numbered(root / "numbered")  # 60 pictures to train with, each of a separate class
    two = spec_of(data, batch=5)
    whole = steps(two, range(12))[1]
    with source(two) as made:
        made.start_at(3, FAR)
        far = [int(label) for label in joint(made.feed(3))[1]]
        restarted = list(made.notices)
    judged = []
    with source(spec_of(data, task="eval", batch=(3, 1))) as made:
        for number in (1, 2, 3):
            try:
                judged.append(joint(made.feed(number))[1].tolist())
            except StopIteration:
                judged.append(None)
    return {
        "judged": judged,
        "far": far,
        "restarted": restarted,
        "first": whole[:60].tolist(),
        "second_pass": whole[60:].tolist(),
    }


def other_batches(root: Path) -> Any:
    """Examples and mean losses of the steps of runs that nothing changes.

    Of runs each of which goes on from the last one with another joint batch, and of a whole run.
    """
    from gputopo.launch.models import build_model
    from gputopo.launch.train import train
    from gputopo.launch.train.lifecycle import newest_checkpoint

    data, name = folders.cifar(root / "cifar")[0], "trivial-cifar10"
    kept = Lifecycle(checkpoints=str(root / "kept"), resume_or_start=True)

    def losses(batch: Sequence[int], count: int, lifecycle: Lifecycle) -> list[tuple[int, float]]:
        fields: dict[str, Any] = {"num_batches": count, "num_warmup_batches": 0, "learning_rate": 0.0}
        spec = spec_of(data, towers=len(batch), batch=tuple(batch), model=name, **fields)
        spec = msgspec.structs.replace(spec, ps_device="/CPU:0", lifecycle=lifecycle)
        events: list[Event] = []
        train(build_model(name, spec), spec, events.append)
        return [(event.images, event.loss or 0.0) for event in events if isinstance(event, Step)]

    parts = [losses(batch, 2, kept) for batch in ((4, 6), (2, 3))]
    saved, _ = newest_checkpoint(root / "kept")
    images = None if saved is None else saved.header.images
    return {"parts": parts[0] + parts[1], "whole": losses((5,), 6, Lifecycle()), "images": images}


def cached(root: Path) -> Any:
    """Refusals to cache records in memory, by the free bytes; files of 12 kB contain pictures of 58 kB."""
    from gputopo.launch.train.inputs import require_cache_memory

    paths = sorted(folders.damaged(root / "cached", "checksum").glob("train-*"))
    stored, decoded = sum(path.stat().st_size for path in paths), 9 * 40 * 40 * 3

    def refusal(form: CacheForm, free: int) -> Any:
        return error_of(lambda: require_cache_memory(paths, form, free=free, host="n1 (rank 1)"))

    return {
        "raw fits": refusal("raw", stored),
        "raw": refusal("raw", stored - 1),
        "decoded fits": refusal("decoded", 2 * decoded),
        "decoded": refusal("decoded", stored),
    }


def gone_on(root: Path) -> Any:
    """Labels of the steps from 4 on, of a run from 0 and of one that begins there, and its notice.

    The batches of its towers differ.
    """
    bad = {2: folders.record(2000), 5: b"\x07 no example", 8: b""}  # without decoding
    records = [bad.get(number, folders.record(number + 1)) for number in range(12)]
    data = folders.with_records(root / "seen", records)
    twelve = Picture(classes=13)  # and the background
    whole = steps(spec_of(data, batch=2, bad_records="skip"), range(9), twelve)[1].tolist()
    with source(spec_of(data, batch=(1, 3), bad_records="skip"), twelve) as made:
        rest = [int(label) for number in range(4, 9) for label in joint(made.feed(number))[1]]
        return {"whole": whole[16:], "rest": rest, "notice": made.notices[-1]}
