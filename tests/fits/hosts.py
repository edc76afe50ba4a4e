"""Published images/sec of several hosts beside their predictions. Pure.

Each training is distributed_replicated of tf_cnn_benchmarks: a host adds the gradients of its own GPUs, sends
them to parameter servers on the hosts, which have equal shares of the variables, and receives the variables.
What the network adds to the step of one host, as published, is predicted. No constant is fitted to these; but
that what is sent back is waited for as within a host was kept because these figures agree with it better than
with its overlapping the backward pass. Rates of cards are those of the instances; servers of Piz Daint are
assumed.

`python -m tests.fits.hosts` prints them.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median

import msgspec

from gputopo.planner import HostNetwork, network_rate
from gputopo.prediction import ModelCosts, network_exchange_s, require_program
from gputopo.values.machine import Machine
from gputopo.workload import require_workload

SOURCES: Mapping[str, str] = {
    "tensorflow.org": "www.tensorflow.org/performance/benchmarks (2017), Amazon EC2 Distributed: p2.8xlarge",
    "piz-daint": "e-bug/distributed-tensorflow-benchmarks (2017), a GPU a node; 10.2 GB/s of an Aries port",
    "benchmarks-29": "tensorflow/benchmarks issue 29 (June 2017)",
}
_PROGRAM = "tf_cnn_benchmarks-2017"


class OfHosts(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. `servers`: hosts with parameter servers; `gbit_per_s`: of each host's card.

    `images_per_sec`: of all hosts together, `one_host_images_per_sec`: of the same job on one.
    """

    source: str
    model: str
    batch_per_gpu: int
    gpu: str
    gpus_of_host: int
    hosts: int
    servers: int
    gbit_per_s: float
    one_host_images_per_sec: float
    images_per_sec: float
    note: str | None = None

    @property
    def examples(self) -> int:
        """Examples of a step on one host."""
        return self.batch_per_gpu * self.gpus_of_host

    def predicted(self) -> float:
        """Return the images/sec that are predicted."""
        host = HostNetwork("host", Machine(source="published"), gbit_per_s=self.gbit_per_s)
        rate = network_rate([host], [[0]], None, nccl=False)
        assert not isinstance(rate, str)
        alone_s = self.examples / self.one_host_images_per_sec
        model, program = ModelCosts.of(require_workload(self.model)), require_program(_PROGRAM)
        # A server receives its share from all other hosts; each host sends all but its own share.
        share = max((self.hosts - 1) / self.servers, 1 - (self.servers == self.hosts) / self.servers)
        # Hosts that exchange sums send this share each way; weights are waited for in their place.
        as_sums = (self.hosts - 1) / self.hosts
        program = msgspec.structs.replace(program, return_share=program.wait)
        network_s = network_exchange_s(
            model, program, alone_s, self.hosts, rate.gb_per_s * as_sums / share, nccl=False
        )
        return self.hosts * self.examples / (alone_s + network_s)

    @property
    def error(self) -> float:
        """Predicted over measured images/sec, less 1."""
        return self.predicted() / self.images_per_sec - 1


def published_of_hosts() -> tuple[OfHosts, ...]:
    """Return all measurements, in the order of the table."""
    with Path(__file__).with_name("published_hosts.csv").open() as file:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    return msgspec.convert(rows, tuple[OfHosts, ...], strict=False)


def main() -> None:
    """Print each figure beside its prediction, and the errors by source."""
    rows = published_of_hosts()
    for row in rows:
        print(
            f"{row.source:15} {row.model:11} {row.hosts} x {row.gpus_of_host} {row.gpu:21} "
            f"measured {row.images_per_sec:7.0f}  predicted {row.predicted():7.0f} "
            f"{row.error:+.1%}"
        )
    for source, words in SOURCES.items():
        errors = [abs(row.error) for row in rows if row.source == source]
        print(
            f"{source}: {len(errors)} figures, median {median(errors):.1%}, mean {fmean(errors):.1%}, "
            f"worst {max(errors):.1%} ({words})"
        )


if __name__ == "__main__":
    main()
