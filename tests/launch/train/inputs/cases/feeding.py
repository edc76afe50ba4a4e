"""How batches come to the step."""

from pathlib import Path
from typing import Any

from gputopo.values.run.batches import BatchSize
from gputopo.values.run.events import Step
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import FEEDS, source, spec_of
from tests.launch.train.small_model import SmallModel

# Their batches, of 6 examples together, by the number of towers.
BATCHES: dict[int, BatchSize] = {1: 6, 2: (2, 4)}
STEPS = 5
# Of the feeds one on two towers: the others differ from `sync` in nothing that a step sees.
TRAINED = (("sync", 1), ("staged", 2))


def ways(root: Path) -> Any:
    """Every source and feed on 2 towers, and sources on 1: its description, its batches and where they are.

    Also losses of those in `TRAINED`. `staged`: in NCHW.
    """
    from gputopo.launch.train import train

    results: dict[str, Any] = {}
    for way in ("gpu", "cpu", *FEEDS):
        fields: dict[str, Any] = {"source": "python", "feed": way} if way in FEEDS else {"source": way}
        fields["data_format"] = "NCHW" if way == "staged" else "NHWC"
        for towers, batch in BATCHES.items():
            if towers == 1 and way in FEEDS[1:]:
                continue
            spec = spec_of(towers=towers, batch=batch, ps_device="/CPU:0", learning_rate=0.3, **fields)
            events: list[Any] = []
            if (way, towers) in TRAINED:
                train(SmallModel(), spec, events.append)
            with source(spec, SmallModel()) as made:
                fed = [made.feed(number) for number in range(STEPS)]
                results[f"{way}-{towers}"] = {
                    "losses": [event.loss for event in events if isinstance(event, Step)],
                    "input": dict(made.describe()),
                    "fed": [f"/{one.device.rpartition(':')[0][-3:]}:{one.device[-1]}" for one in fed[0]],
                    "sums": [float(one.numpy().sum(dtype=float)) for step in fed for one in step],
                }
    return results


def unused(root: Path) -> None:
    """Close sources before their first step, twice; what is left of them is seen by `process`."""
    data = folders.coloured(root / "unused")
    python: list[dict[str, Any]] = [{"source": "python", "feed": feed} for feed in FEEDS]
    ways: list[dict[str, Any]] = [{"folder": data}, {"source": "cpu"}, *python]
    for fields in ways:
        with source(spec_of(**fields)) as made:
            pass
        made.close()
