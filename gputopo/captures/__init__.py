"""Parsers of other tools' output: text in, values out. One module per format, listed in `detect.formats`.

`load` reads a machine from captures, `read_measurements` the results of training runs. Each name loads its
module when it is used, because a live reading uses only small parts of this package.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.captures.bandwidth.programs import read_program as read_program
    from gputopo.captures.limits import limited_time as limited_time
    from gputopo.captures.merging import merge as merge
    from gputopo.captures.messages import read_messages as read_messages
    from gputopo.captures.reading import load as load
    from gputopo.captures.reading import read_bytes as read_bytes
    from gputopo.captures.reading import read_text as read_text
    from gputopo.captures.reading import readable as readable
    from gputopo.captures.recording import bundled_names as bundled_names
    from gputopo.captures.recording import read_bundled as read_bundled
    from gputopo.captures.training_failures import failure_in as failure_in
    from gputopo.captures.training_files import encodable as encodable
    from gputopo.captures.training_files import read_measurements as read_measurements

_MODULES = {
    "bundled_names": "recording",
    "encodable": "training_files",
    "failure_in": "training_failures",
    "limited_time": "limits",
    "load": "reading",
    "merge": "merging",
    "read_bundled": "recording",
    "read_bytes": "reading",
    "read_measurements": "training_files",
    "read_messages": "messages",
    "read_program": "bandwidth.programs",
    "read_text": "reading",
    "readable": "reading",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
