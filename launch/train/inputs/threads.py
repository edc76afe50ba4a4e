"""How many threads an input pipeline gets: what the towers leave of the cores. No TensorFlow here."""

from gputopo.launch.spec.run_spec import Backend

# As tf_cnn_benchmarks: besides its own threads, a GPU keeps two of the host's busy.
MONITORING_THREADS = 2


def private_threads(
    asked: int | None, *, cores: int, backend: Backend, running: int, per_gpu_threads: int
) -> int:
    """Give as many as asked, or the cores that the towers leave, at least 1.

    `running`: towers that run at once. One on a CPU device needs a core, one on a GPU `per_gpu_threads` and
    `MONITORING_THREADS`.
    """
    if asked is not None:
        return asked
    each = 1 if backend == "cpu" else per_gpu_threads + MONITORING_THREADS
    return max(cores - running * each, 1)
