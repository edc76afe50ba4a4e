"""The input without a model."""

from collections import Counter
from pathlib import Path
from typing import Any

from gputopo.values.run.events import Device, ModelBuilt, Noticed, Step, WarmupDone
from gputopo.values.run.spec import Backend
from gputopo.workload import require_workload
from tests.launch.train.gpu_kernels import is_gpu_build, without_gpu_kernel
from tests.launch.train.inputs import folders
from tests.launch.train.inputs.cases.sources import Picture, source, spec_of


def input_only(root: Path) -> Any:
    from gputopo.launch.train.lifecycle.evaluating import measure_input

    data = folders.damaged(root / "only", "checksum")
    events: list[Any] = []
    said = measure_input(Picture(), spec_of(data, bad_records="skip", batch=3), events.append)
    known: list[Any] = []
    measure_input(require_workload("resnet20"), spec_of(source="python", feed="queue"), known.append)
    detected: list[Any] = []
    measure_input(Picture(), spec_of(source="cpu", min_warmup_s=0.05), detected.append)
    counted = [event for event in events if isinstance(event, Step)]
    return {
        "kinds": [type(event).__name__ for event in events],
        "steps": [event.step for event in counted],
        "losses": [event.loss for event in counted],
        "images": [event.images for event in counted],
        "marks": [
            [
                mark.tower,
                mark.weights_s >= 0,
                mark.compute_s > 0,
                mark.weights_s + mark.compute_s <= event.seconds,
            ]
            for event in counted
            for mark in event.marks
        ],
        "says": next(event.says for event in events if isinstance(event, ModelBuilt)),
        "noticed": [event.says for event in events if isinstance(event, Noticed)],
        "describes": dict(said),
        "input": next(event.input for event in events if isinstance(event, ModelBuilt)),
        "waited": [event.waited_s is not None and event.waited_s <= event.seconds for event in counted],
        "detected_steps": [event.step for event in detected if isinstance(event, Step)],
        "detected": next([event.steps, event.seconds] for event in detected if isinstance(event, WarmupDone)),
        "known": Counter(type(event).__name__ for event in known if isinstance(event, Step | WarmupDone)),
    }


def private_threads(root: Path) -> Any:
    """Threads of a pipeline, of known machines and as asked for."""
    from gputopo.launch.train.inputs.factory import private_threads as of

    machines: list[tuple[int, Backend, int]] = [
        (2, "cpu", 2),
        (8, "cpu", 2),
        (40, "gpu", 8),
        (16, "gpu", 8),
        (16, "gpu", 1),
        (1, "cpu", 16),
    ]
    return {
        "known": [
            of(None, cores=cores, backend=backend, running=running, per_gpu_threads=2)
            for cores, backend, running in machines
        ],
        "asked": of(3, cores=1, backend="gpu", running=8, per_gpu_threads=2),
    }


def gpu_kernels(root: Path) -> Any:
    """Ops that reading puts on a tower's device (CPU 1 stands for a GPU) and that have no kernel there."""
    import msgspec

    from gputopo.launch.train.lifecycle.evaluating import Arrival

    data = folders.coloured(root / "kernels")
    device = (Device(tower=0, device="/CPU:1"),)
    used, fed, without = set(), [], set()
    ways: list[dict[str, Any]] = [{"folder": data}, {"source": "cpu"}, {"source": "gpu"}]
    for fields in ways:
        spec = msgspec.structs.replace(spec_of(**fields, data_format="NCHW", towers=1), devices=device)
        with source(spec) as made:
            arrival = Arrival(made, spec)
            arrival(0)
            fed += [list(one.shape) for one in made.feed(1)[:1]]
            nodes = arrival.graph.graph.as_graph_def().node
            placed = [node for node in nodes if node.device.endswith("CPU:1")]
            used |= {node.op for node in placed}
            without |= {node.op for node in without_gpu_kernel(placed)}
    return {
        "gpu_build": is_gpu_build(),
        "fed_for_NCHW": fed[0],
        "used": sorted(used),
        "without": sorted(without),
    }
