"""How fast the network between hosts is. Pure.

What TensorFlow's copies between hosts (gRPC) reach of a network, and at most:

| figure | source |
|---|---|
| 0.8 of 1.25 GB/s of a 10 Gbit/s card | tensorflow/tensorflow issue 6116, August 2017 |
| 0.5 and 0.57 GB/s between processes, without a network as the limit | issues 6116 and 6256, 2017 |
| 0.67 GB/s in both directions at once, on a core each, loopback, TensorFlow 2.21 | gputopo |
| 9.3 of 10 Gbit/s by iperf | tensorflow/benchmarks issue 29 |

No figure of TensorFlow 2 between hosts with many cores was found, so the most in one direction is ours.

What rings of NCCL reach of all cards that are near to its GPUs (busbw of all_reduce_perf):

| figure | by | source |
|---|---|---|
| 46 to 48 of 50 GB/s; 12.2 of 12.5; 85 to 96 of 100 | GPUDirect RDMA | NVIDIA/nccl-tests 290, 29, 119 |
| 217 of 400 GB/s | GPUDirect RDMA over RoCE | NVIDIA/nccl 2409 |
| 6 of 12.5; 15 to 16 of 25 GB/s | RDMA by way of host memory | NVIDIA/nccl 465, 412 |
| 4 to 6 of 12.5 GB/s | sockets | NVIDIA/nccl 450 |
"""

GBIT = 1 / 8  # GB/s
GRPC_OF_CARD = 0.64  # of the card's rate
GRPC_OF_TCP = 0.69  # of what TCP was measured to carry: 0.8 of 9.3/8 GB/s
GRPC_GB_PER_S = 1.0  # at most, in one direction, whatever the network carries
NCCL_OF_CARDS = 0.8  # of the cards' rate, if they are near
NCCL_BY_HOST = 0.55  # the same, by way of host memory
NCCL_BY_SOCKETS = 0.7
NCCL_SOCKETS_GB_PER_S = 5.0  # at most


def grpc_gb_per_s(card_gbit_per_s: float) -> float:
    """Return what copies of TensorFlow reach behind a card of so many Gbit/s."""
    return min(GRPC_OF_CARD * card_gbit_per_s * GBIT, GRPC_GB_PER_S)
