"""Settings of TensorFlow's runtime."""

from collections.abc import Mapping
from typing import Any, get_args

from gputopo.cli.choices import require_choice
from gputopo.cli.run.offers import Offer, at_least
from gputopo.launch.spec.run_spec import Runtime, ThreadMode

THREAD_MODES: tuple[ThreadMode, ...] = get_args(ThreadMode)
_MIB = "MIB"

INTRA = Offer("--num-intra-threads", int, "N", "Threads within an op. Default: TensorFlow's.")
INTER = Offer("--num-inter-threads", int, "N", "Ops at a time. Default: TensorFlow's.")
GPU_THREAD_MODE = Offer(
    "--gpu-thread-mode", str, "|".join(THREAD_MODES), "Who starts GPU kernels. Default: gpu_private."
)
PER_GPU_THREADS = Offer("--per-gpu-thread-count", int, "N", "Threads for that. Default: 2.")
MEMORY_LIMIT = Offer("--gpu-memory-limit", int, _MIB, "Of each GPU. Default: grows as needed.")

OFFERS = (INTRA, INTER, GPU_THREAD_MODE, PER_GPU_THREADS, MEMORY_LIMIT)


def runtime_of(typed: Mapping[str, Any]) -> Runtime:
    """Check the options of this theme and give the settings. Raises UsageError."""
    plain = Runtime()
    mode = typed["gpu_thread_mode"]
    threads = at_least(1, PER_GPU_THREADS, typed["per_gpu_thread_count"])
    return Runtime(
        intra_threads=at_least(1, INTRA, typed["num_intra_threads"]),
        inter_threads=at_least(1, INTER, typed["num_inter_threads"]),
        gpu_thread_mode=plain.gpu_thread_mode
        if mode is None
        else require_choice("--gpu-thread-mode", mode.replace("-", "_"), THREAD_MODES),
        per_gpu_threads=plain.per_gpu_threads if threads is None else threads,
        memory_limit_mib=at_least(1, MEMORY_LIMIT, typed["gpu_memory_limit"]),
    )
