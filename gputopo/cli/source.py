"""The option `--from`."""

from gputopo.values.option import Option

FROM = Option(
    "--from",
    "Read a capture or bundled machine (7gforce)",
    detail="Instead of this machine. Captures: a gputopo recording, output or a log of nvidia-smi, "
    "nvidia-bug-report.log, a kernel log, an error message of the driver, output of lspci, lscpu, numactl, "
    "TensorFlow or a bandwidth test, topology XML of NCCL, a folder with a copied /sys; compressed or not; "
    "- for stdin. The format is detected by content. Repeatable",
    value="FILE",
    repeated=True,
)
