"""What a launcher must set so that a program sees the chosen GPUs, and only these."""

from collections.abc import Sequence

from gputopo.values.machine import Machine


def plan_environment(machine: Machine, gpus: Sequence[int]) -> dict[str, str]:
    """Give the variables that make the program see these GPUs, in this order.

    They must be set before TensorFlow loads. By UUID where it is known for all of them, because CUDA numbers
    GPUs by speed unless told otherwise and leaves out those that do not answer; else by index, which
    `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes the same as nvidia-smi's. See "CUDA Environment Variables" in
    NVIDIA's CUDA programming guide.
    """
    uuids = {gpu.index: gpu.uuid for gpu in machine.gpus}
    named = [uuid for gpu in gpus if (uuid := uuids.get(gpu))]
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(named if len(named) == len(gpus) else map(str, gpus)),
    }
