"""Writes `gputopo/reference/data/workloads.json` from the networks: `python -m gputopo.workload.table`."""

from pathlib import Path

from gputopo.reference import data
from gputopo.values import schema
from gputopo.workload.catalogue import ARCHITECTURES, Architecture
from gputopo.workload.models import BlockCost, Table, Workload


def workload_of(architecture: Architecture) -> Workload:
    """Follow one network and give what it costs."""
    drawn = architecture.sketch()
    trained = sum(one.size for one in drawn.variables if one.trainable)
    return Workload(
        name=architecture.name,
        data_name=architecture.data_name,
        input_shape=architecture.input_shape,
        classes=architecture.classes,
        parameters=trained,
        state=sum(one.size for one in drawn.variables) - trained,
        gpu_batch=architecture.gpu_batch,
        cpu_batch=architecture.cpu_batch,
        learning_rate=architecture.learning_rate,
        blocks=tuple(
            BlockCost(
                name=block.name,
                parameters=block.parameters,
                multiply_accumulates=block.multiply_accumulates,
                features=block.features,
            )
            for block in drawn.blocks
        ),
    )


def table() -> Table:
    """Follow all networks."""
    return Table(workloads=tuple(workload_of(one) for one in ARCHITECTURES.values()))


def main() -> None:
    """Write the file beside the other data."""
    schema.write(Path(data.__path__[0]) / "workloads.json", table())


if __name__ == "__main__":
    main()
