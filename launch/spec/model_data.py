"""Which model of which data: `--model alexnet --data-name cifar10` is alexnet-cifar10. Pure."""

import difflib

from gputopo.launch.spec import model_names
from gputopo.values.errors import UsageError
from gputopo.workload import workloads as workload

_CIFAR10 = "-cifar10"


def model_for(name: str, data_name: str | None) -> str:
    """Give the model's full name for the data set that was asked for, None: the model's own.

    Raises UsageError for a model that is not known, or that has no form for this data set.
    """
    asked = model_names.read(name)
    if data_name is None or asked.kind != "network":
        return name
    if workload.require(name).data_name == data_name:
        return name
    if data_name == "cifar10" and name + _CIFAR10 in workload.names():
        return name + _CIFAR10
    if data_name == "imagenet" and name.removesuffix(_CIFAR10) in workload.names() and _CIFAR10 in name:
        return name.removesuffix(_CIFAR10)
    of_data = [other for other in workload.names() if workload.require(other).data_name == data_name]
    near = difflib.get_close_matches(name, of_data, n=1, cutoff=0.0)
    raise UsageError(
        f"--data-name {data_name} does not go with --model {name}: "
        f"it takes {workload.require(name).data_name} only",
        f"leave --data-name out, or use --model {near[0]}",
    )


def data_of(model: str) -> str | None:
    """Give the data set of a model's examples; None where only the model itself can tell."""
    asked = model_names.read(model)
    return workload.require(model).data_name if asked.kind == "network" else None
