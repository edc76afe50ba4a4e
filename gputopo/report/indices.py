"""The four ways to number GPUs: PCI order, NVML's index, CUDA's own order and TensorFlow's /GPU:n."""

from collections.abc import Iterator, Sequence

from gputopo.report.facts import reason_for
from gputopo.values.machine import Machine

_ORDER = "CUDA_DEVICE_ORDER=PCI_BUS_ID"


def index_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    """Give the numbers on one line. Nothing where CUDA's are neither known nor were asked for."""
    gpus = machine.gpus
    asked = any(
        gpu.cuda_index is not None or reason_for(machine.missing, f"gpus[{gpu.index}].cuda_index")
        for gpu in gpus
    )
    if not asked:
        return
    # TensorFlow numbers the GPUs that CUDA shows it, from 0; CUDA leaves out those that do not answer.
    answering = [gpu.index for gpu in gpus if not gpu.lost]
    place = {index: number for number, index in enumerate(answering)}
    own = _numbers([gpu.index for gpu in gpus])
    cuda = _numbers([gpu.cuda_index for gpu in gpus])
    tensorflow = _numbers([place.get(gpu.index) for gpu in gpus])
    yield "Index", f"NVML and PCI {own}, CUDA {cuda}, TensorFlow (gputopo) /GPU:{tensorflow}"


def order_warning(machine: Machine) -> str | None:
    """Give the warning where CUDA's default order is not the order of nvidia-smi, or may not be."""
    answering = [gpu for gpu in machine.gpus if not gpu.lost]
    if len(machine.gpus) < 2 or not list(index_rows(machine)):
        return None
    if all(gpu.cuda_index == place for place, gpu in enumerate(answering)):
        return None
    certain = all(gpu.cuda_index is not None for gpu in answering)
    fact = "is another one" if certain else "may be another one (it puts the fastest GPU first)"
    return f"CUDA's default order {fact}: set {_ORDER}, as gputopo run does"


def _numbers(values: Sequence[int | None]) -> str:
    """Give `0-3` for numbers that rise one by one, `1,0,2` for others, `?` for one that is not known."""
    if values and all(value is None for value in values):
        return "?"
    runs: list[list[int | None]] = []
    for value in values:
        if runs and value is not None and runs[-1][-1] is not None and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(_run(run) for run in runs)


def _run(run: Sequence[int | None]) -> str:
    first = "?" if run[0] is None else str(run[0])
    return first if len(run) == 1 else f"{first}-{run[-1]}"
