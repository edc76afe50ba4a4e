"""How batches come to the step."""

from pathlib import Path
from typing import Any

from gputopo.values.run.batches import BatchSize
from gputopo.values.run.events import Step
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import FEEDS, source, spec_of
from tests.launch.train.small_model import SmallModel

STEPS = 5
SOURCES = ("gpu", "cpu", *FEEDS)


def ways(root: Path) -> Any:
    """Every source and feed on 2 towers, and `single`: its description, its batches and where they are.

    Also losses of `single` and `staged`: the other feeds differ from `sync` in nothing that a step sees.
    `staged`: in NCHW.
    """
    from gputopo.launch.train import train

    results: dict[str, Any] = {}
    cases: list[tuple[str, str, BatchSize]] = [
        ("single", "sync", 6),
        *((way, way, (2, 4)) for way in SOURCES),
    ]
    for name, way, batch in cases:
        fields: dict[str, Any] = {"source": "python", "feed": way} if way in FEEDS else {"source": way}
        fields |= {"ps_device": "/CPU:0", "data_format": "NCHW" if way == "staged" else "NHWC"}
        spec = spec_of(towers=1 if name == "single" else 2, batch=batch, learning_rate=0.3, **fields)
        events: list[Any] = []
        if name in ("single", "staged"):
            train(SmallModel(), spec, events.append)
        with source(spec, SmallModel()) as made:
            fed = [made.feed(number) for number in range(STEPS)]
            results[name] = {
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
