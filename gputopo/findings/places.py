"""What a GPU is in (slot, virtual machine, notebook, baseboard), and the remedies that apply there."""

import re
from collections.abc import Mapping
from typing import Literal

from gputopo.reference import expected_of
from gputopo.values.machine import Gpu, Machine

Place = Literal["virtual machine", "notebook", "module", "server card"]
# What a remedy is about, if it differs by place; "" if it does not.
Fits = Literal["", "slot", "cooling", "bridge", "power"]

_NOTEBOOK = re.compile(r"\b(?:Laptop GPU|with Max-Q Design|Mobile)\b")
_MODULE = re.compile(r"SXM|\bGH200")
# Cards without a fan, which the fans of a server cool.
_PASSIVE = re.compile(r"(?:NVIDIA )?(?:Tesla \w+|[ALH]\d{1,3}[A-Z]?|T4)\b(?!.*Active).*|.* Server Edition")

_ASK_THE_OPERATOR = (
    "A virtual machine cannot change it: report it to the operator of the host, or use another instance."
)
_FANS_OF_A_SERVER = (
    "Check the fans and air baffles (or liquid loop) of the server, and its inlet temperature."
)
# Remedies in place of those for a card with a fan in a slot.
ELSEWHERE: Mapping[Fits, Mapping[Place, str]] = {
    "slot": {
        "virtual machine": _ASK_THE_OPERATOR,
        "notebook": (
            "Connect the original power supply, and update BIOS and driver. GPU and lanes are soldered: "
            "if it persists, the mainboard is at fault."
        ),
        "module": (
            "Reset the GPU (sudo nvidia-smi -r -i GPU) or power-cycle the machine. If it persists, have "
            "the operator reseat or replace the module or its baseboard."
        ),
    },
    "cooling": {
        "virtual machine": _ASK_THE_OPERATOR,
        "notebook": (
            "Clean its air vents and fans, and raise it from the table. If it stays hot, have the thermal "
            "paste renewed."
        ),
        "module": _FANS_OF_A_SERVER,
        "server card": _FANS_OF_A_SERVER,
    },
    "bridge": {
        "virtual machine": _ASK_THE_OPERATOR,
        "module": (
            "See nvidia-smi nvlink -s and -e, and whether nvidia-fabricmanager runs. Reset the GPUs "
            "together (sudo nvidia-smi -r). If it persists, have the operator check module and baseboard."
        ),
    },
    "power": {
        "virtual machine": _ASK_THE_OPERATOR,
        "notebook": "Connect the original power supply; the battery or a weaker one limits the GPU.",
        "module": "Check the server's power supplies and its power budget for GPUs (BMC).",
    },
}


def place_of(machine: Machine, gpu: Gpu) -> Place | None:
    """Return what a GPU is in; None: a card with a fan in a slot."""
    if machine.host.virtual_machine not in (None, "none"):
        return "virtual machine"
    if is_notebook(gpu):
        return "notebook"
    return kind_of_board(gpu)


def kind_of_board(gpu: Gpu) -> Literal["module", "server card"] | None:
    """Return "module" (SXM) or "server card" (without a fan) of a data center model, None of any other."""
    reference = expected_of(gpu)
    if _MODULE.search(gpu.name or "") or (reference is not None and reference.is_module):
        return "module"
    return "server card" if _PASSIVE.fullmatch(gpu.name or "") else None


def is_notebook(gpu: Gpu) -> bool:
    """Return whether it is a GPU of a notebook, soldered to its mainboard."""
    return _NOTEBOOK.search(gpu.name or "") is not None
