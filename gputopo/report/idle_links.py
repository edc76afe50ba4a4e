"""Links that look slow because nothing runs: an idle GPU lowers the generation of its PCIe link by itself."""

from gputopo.findings.load import at_work
from gputopo.values.machine import Gpu


def link_is_slow_while_idle(gpu: Gpu) -> bool:
    """Tell whether the PCIe generation is below its most on a GPU that was not seen at work."""
    now, most = gpu.pcie.gen_now, gpu.pcie.gen_max
    return now is not None and most is not None and now < most and not at_work(gpu)
