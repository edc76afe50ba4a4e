"""How batches come to the step: the feeds, their failures, threads and times."""

import functools
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from gputopo.values.errors import GputopoError
from gputopo.values.run.batches import BatchSize
from gputopo.values.run.events import Step
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import FEEDS, Picture, error_of, joint, source, spec_of
from tests.launch.train.small_model import SmallModel

LONG_S = 0.2
# Their batches, of 6 examples together, by the number of towers.
BATCHES: dict[int, BatchSize] = {1: 6, 2: (2, 4)}
STEPS = 5


def ways(root: Path) -> Any:
    """Every source and feed on 2 towers, and sources on 1: its description, its batches and where they are.

    And losses, but of the feeds that differ from `sync` in nothing that a step sees, and of `gpu` on 2
    towers, which every test of an exchange has. `staged`: in NCHW.
    """
    from gputopo.launch.device_names import short_name
    from gputopo.launch.train import training

    results: dict[str, Any] = {}
    for way in ("gpu", "cpu", *FEEDS):
        fields: dict[str, Any] = {"source": "python", "feed": way} if way in FEEDS else {"source": way}
        fields["data_format"] = "NCHW" if way == "staged" else "NHWC"
        for towers, batch in BATCHES.items():
            if towers == 1 and way in FEEDS[1:]:
                continue
            spec = spec_of(towers=towers, batch=batch, ps_device="/CPU:0", learning_rate=0.3, **fields)
            events: list[Any] = []
            if way not in ("queue", "dataset") and (way, towers) != ("gpu", 2):
                training.train(SmallModel(), spec, events.append)
            with source(spec, SmallModel()) as made:
                fed = [made.feed(number) for number in range(STEPS)]
                results[f"{way}-{towers}"] = {
                    "losses": [event.loss for event in events if isinstance(event, Step)],
                    "input": dict(made.describe()),
                    "fed": [short_name(one.device) for one in fed[0]],
                    "sums": [float(one.numpy().sum(dtype=float)) for step in fed for one in step],
                }
    return results


def failing(root: Path) -> Any:
    """A maker that fails at step 2, behind each method of feeding from a thread."""
    from gputopo.launch.train.inputs import fed
    from gputopo.launch.train.inputs.synthetic import Generated

    class Failing(fed.Maker):
        def make(self, number: int) -> Any:
            if number == 2:
                raise OSError(28, "No space left on device")
            if number == 5:
                raise StopIteration
            return [np.full((4, 24, 32, 3), number, np.float32), np.zeros(4, np.int64)] * 2

    results: dict[str, Any] = {}
    spec = spec_of()
    ways: dict[str, fed.Batches] = {
        "sync": fed.Batches(Failing().make),
        "queue": fed.Prefetched(Failing().make, 3),
        "dataset": Generated(Failing(), spec, Picture().input_shape, 1),
        "staged": fed.staged(Failing(), spec, ahead=2),
    }
    for name, taken in ways.items():
        with closing(fed.FedSource(Picture(), spec, Failing(), taken, {}, made_format="NHWC")) as made:
            values = [float(joint(made.feed(number))[0].mean()) for number in (0, 1)]
            error = error_of(functools.partial(made.feed, 2))
            values += [float(joint(made.feed(number))[0].mean()) for number in (3, 4)]
            try:
                made.feed(5)
                ended = None
            except (StopIteration, GputopoError) as stop:
                ended = type(stop).__name__
            again = float(joint(made.feed(1))[0].mean())
        results[name] = {"values": values, "error": error, "ended": ended, "again": again}
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


def marks(root: Path) -> Any:
    """Times of a step, in seconds, whose batch takes `LONG_S` to make."""
    from gputopo.launch.train import step as core
    from gputopo.launch.train.inputs import fed
    from gputopo.launch.train.inputs.synthetic import Pool
    from gputopo.launch.train.placement import placements

    spec = spec_of(ps_device="/CPU:0")
    model = SmallModel()
    pool = Pool(model, spec)

    def slowly(number: int) -> Any:
        time.sleep(LONG_S)
        return pool.make(number)

    with closing(fed.FedSource(model, spec, pool, fed.Batches(slowly), {}, made_format="NHWC")) as made:
        taken = core.TrainingStep(model, spec, placements.place(model, spec), made)
        taken(0)
        began = time.perf_counter()
        outcome = taken(1)
        of_slow_input = {
            "step": time.perf_counter() - began,
            "waited": made.waited_s,
            "last_mark": float(outcome.marks.max()),
        }
    with closing(fed.FedSource(model, spec, pool, fed.Prefetched(slowly, 1), {}, made_format="NHWC")) as made:
        made.feed(0)
        time.sleep(3 * LONG_S)  # a slow model
        made.feed(1)
        return {**of_slow_input, "waited_of_slow_model": made.waited_s}
