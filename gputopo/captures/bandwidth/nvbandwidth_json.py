"""The JSON of `nvbandwidth -j` (0.5 and later): text in, Machine out. Host names in it are dropped.

What the numbers of each test are, `nvbandwidth_tests` tells. Of a bidirectional test between GPUs the JSON
holds three matrices in one, each direction and their total, one below the other.
"""

import re

from gputopo.captures import merge
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

READS = "`nvbandwidth -j` JSON"

_HINT = "run `nvbandwidth -j` again and copy all that it prints"
_START = re.compile(r'\{\s*"nvbandwidth"\s*:')


def recognise(text: str) -> bool:
    """Tell whether a JSON object of nvbandwidth begins in the text."""
    return _START.search(text) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read every JSON object of nvbandwidth in the text. Raises InputError where one is cut off or odd."""
    import json  # not every capture needs these two

    from gputopo.captures.bandwidth import nvbandwidth_cases

    machines: list[Machine] = []
    end = 0
    while start := _START.search(text, end):
        try:
            document, end = json.JSONDecoder().raw_decode(text, start.start())
        except RecursionError as error:
            raise InputError(f"{origin} is JSON that is nested too deep", _HINT) from error
        except ValueError as error:
            raise InputError(f"{origin} is not complete JSON: {error}", _HINT) from error
        machines.append(nvbandwidth_cases.machine(document["nvbandwidth"], origin=origin))
    if not machines:
        raise InputError(f"{origin} holds no JSON of nvbandwidth", _HINT)
    return merge.merge(machines)
