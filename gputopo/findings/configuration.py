"""Models and settings: GPUs of different models, compute and MIG modes, persistence, CUDA's order."""

from collections.abc import Iterator

from gputopo.findings.rule import Fault, Rule, by_model, check, each_gpu, present
from gputopo.findings.usage import drives_display
from gputopo.reference import expected_of
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import MACHINE

MIXED_MODELS = Rule(
    "machine.mixed_models",
    "GPUs of different models",
    remedy=(
        "Train on GPUs of one model (gputopo plan --gpus LIST): in synchronous training, the slowest GPU "
        "limits the speed and the smallest memory limits the batch size."
    ),
    severities=("info",),
)
NO_EXPECTATION = Rule(
    "card.no_expectation",
    "no reference data for this model",
    remedy=(
        "Compare clocks and link with the data sheet: they were only compared with GPUs of the same model."
    ),
    severities=("info",),
)
COMPUTE_PROHIBITED = Rule(
    "configuration.compute_prohibited",
    "compute mode Prohibited: no CUDA program may use the GPU",
    remedy="Run sudo nvidia-smi -i GPU -c DEFAULT.",
    severities=("error",),
)
MIG_ON = Rule(
    "configuration.mig_on",
    "MIG mode on: a program gets one instance, without P2P to other GPUs",
    remedy="To train on the whole GPU: sudo nvidia-smi -i GPU -mig 0.",
    severities=("info",),
)
PERSISTENCE_OFF = Rule(
    "configuration.persistence_off",
    (
        "persistence mode off: the driver initialises the GPU for each program, which takes seconds and "
        "resets its settings"
    ),
    remedy=(
        "Run sudo nvidia-smi -pm 1, again after each boot. nvidia-persistenced does it at boot, if its "
        "service is not started with --no-persistence-mode, as Ubuntu's is."
    ),
    severities=("info",),
)
CUDA_ORDER = Rule(
    "cuda.order_differs",
    "CUDA numbers the GPUs in another order than nvidia-smi",
    remedy="Set CUDA_DEVICE_ORDER=PCI_BUS_ID before a program starts; gputopo run does.",
)


@check(MIXED_MODELS)
def mixed_models(machine: Machine) -> Iterator[Fault]:
    """Report GPUs of different models."""
    groups = by_model(machine)
    if len(groups) > 1:
        models = {group[0].name or "": [gpu.index for gpu in group] for group in groups}
        words = "; ".join(f"{name}: GPU {index_ranges(gpus)}" for name, gpus in models.items())
        memory = {str(gpu.index): gpu.memory_mib.total for gpu in present(machine)}
        evidence = {"models": models, "memory_mib": memory}
        yield MIXED_MODELS.fault(MACHINE, f"GPUs of {len(groups)} models ({words})", evidence)


@check(NO_EXPECTATION)
def no_expectation(machine: Machine) -> Iterator[Fault]:
    """Report models without reference data: a GPU that was not compared has not passed."""
    for group in by_model(machine):
        name = group[0].name
        if expected_of(group[0]) is None:
            evidence = {"name": name, "gpus": [gpu.index for gpu in group]}
            for gpu in group:
                yield NO_EXPECTATION.fault(gpu, f"no reference data for {name}", evidence, part=name or "")


@each_gpu(COMPUTE_PROHIBITED, MIG_ON)
def modes(gpu: Gpu) -> Iterator[Fault]:
    """Find compute modes and MIG modes that limit what a program can do."""
    if gpu.compute_mode == "prohibited":
        yield COMPUTE_PROHIBITED.fault(gpu, COMPUTE_PROHIBITED.title, {"compute_mode": gpu.compute_mode})
    if gpu.mig.mode:
        yield MIG_ON.fault(gpu, MIG_ON.title, {"instances": gpu.mig.instances})


@each_gpu(PERSISTENCE_OFF)
def persistence(gpu: Gpu) -> Iterator[Fault]:
    """Find GPUs that the driver initialises for each program.

    A GPU that a display server uses stays initialised (docs.nvidia.com/deploy/driver-persistence, Overview).
    """
    if gpu.persistence_mode is False and not drives_display(gpu):
        yield PERSISTENCE_OFF.fault(gpu, PERSISTENCE_OFF.title, {"persistence_mode": False})


@check(CUDA_ORDER)
def cuda_order(machine: Machine) -> Iterator[Fault]:
    """Report that CUDA numbers the GPUs in another order than nvidia-smi."""
    numbers = {gpu.index: gpu.cuda_index for gpu in machine.gpus}
    # A subset of the GPUs, as in a container or with CUDA_VISIBLE_DEVICES, does not mean another order.
    seen = [cuda for _, cuda in sorted(numbers.items()) if cuda is not None]
    if seen != sorted(seen):
        moved = {index: cuda for index, cuda in numbers.items() if cuda not in (None, index)}
        words = ", ".join(f"GPU {index} is CUDA device {cuda}" for index, cuda in moved.items())
        says = f"CUDA and TensorFlow number the GPUs in another order than nvidia-smi: {words}"
        yield CUDA_ORDER.fault(
            MACHINE, says, {"cuda_index": {str(index): cuda for index, cuda in numbers.items()}}
        )
