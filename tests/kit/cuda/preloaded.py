"""What the processes of tests on the double have in common: imported, and computed, once in their server."""

import importlib

from gputopo.probes.cuda.pattern import block

for name in (
    "cuda.bindings.driver",
    "tests.kit.cuda.layouts",
    "tests.kit.preloaded",
):
    importlib.import_module(name)
block(0)
