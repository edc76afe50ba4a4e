"""How fast the network between hosts is.

What TensorFlow's copies between hosts (gRPC) reach of a network, and the maximum:

| figure | source |
|---|---|
| 0.8 of 1.25 GB/s of a 10 Gbit/s card | tensorflow/tensorflow issue 6116, August 2017 |
| 0.5 and 0.57 GB/s between processes, without a network as the limit | issues 6116 and 6256, 2017 |
| 0.67 GB/s in both directions at once, on a core each, loopback, TensorFlow 2.21 | gputopo |
| 9.3 of 10 Gbit/s by iperf | tensorflow/benchmarks issue 29 |

No figure for TensorFlow 2 between hosts with many cores was found. The maximum in one direction is therefore
not measured.

What NCCL's rings reach of all cards near the GPUs (busbw of all_reduce_perf):

| figure | by | source |
|---|---|---|
| 46 to 48 of 50 GB/s; 12.2 of 12.5; 85 to 96 of 100 | GPUDirect RDMA | NVIDIA/nccl-tests 290, 29, 119 |
| 217 of 400 GB/s | GPUDirect RDMA over RoCE | NVIDIA/nccl 2409 |
| 6 of 12.5; 15 to 16 of 25 GB/s | RDMA by way of host memory | NVIDIA/nccl 465, 412 |
| 4 to 6 of 12.5 GB/s | sockets | NVIDIA/nccl 450 |
"""

GBIT = 1 / 8  # GB/s
GRPC_OF_CARD = 0.64  # share of the card's rate
GRPC_OF_TCP = 0.69  # share of the measured TCP rate: 0.8 of 9.3/8 GB/s
GRPC_GB_PER_S = 1.0  # maximum in one direction, on any network
NCCL_OF_CARDS = 0.8  # share of the cards' rate, if the cards are near the GPUs
NCCL_BY_HOST = 0.55  # the same through host memory
NCCL_BY_SOCKETS = 0.7
NCCL_SOCKETS_GB_PER_S = 5.0  # maximum


def grpc_gb_per_s(card_gbit_per_s: float) -> float:
    """Return the GB/s that TensorFlow's copies reach over a card of this rate in Gbit/s."""
    return min(GRPC_OF_CARD * card_gbit_per_s * GBIT, GRPC_GB_PER_S)
