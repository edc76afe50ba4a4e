"""What the test processes on the double share: their server imports and computes it once."""

import importlib

from gputopo.probes.cuda import block

for name in (
    "cuda.bindings.driver",
    "tests.kit.cuda.layouts",
    "tests.kit.preloaded",
):
    importlib.import_module(name)
block(0)
