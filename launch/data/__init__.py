"""Data sets on the disk: found, checked and generated. Each name loads its module when it is used."""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.data.folder import find_data as find_data
    from gputopo.launch.data.folder import require_made_for as require_made_for
    from gputopo.launch.data.folder import require_sound as require_sound
    from gputopo.launch.data.make import DataRequest as DataRequest
    from gputopo.launch.data.make import make_data as make_data
    from gputopo.launch.data.tfrecords import masked_crc as masked_crc

_MODULES = {
    "DataRequest": "make",
    "find_data": "folder",
    "make_data": "make",
    "masked_crc": "tfrecords",
    "require_made_for": "folder",
    "require_sound": "folder",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
