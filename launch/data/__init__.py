"""Data sets on the disk: found, checked and generated. Each name loads its module when it is used."""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.data.cifar_files import read_cifar as read_cifar
    from gputopo.launch.data.cifar_files import write_cifar as write_cifar
    from gputopo.launch.data.examples import wrong_fields as wrong_fields
    from gputopo.launch.data.folder import Listing as Listing
    from gputopo.launch.data.folder import count_records as count_records
    from gputopo.launch.data.folder import find_damage as find_damage
    from gputopo.launch.data.folder import find_data as find_data
    from gputopo.launch.data.folder import list_files as list_files
    from gputopo.launch.data.folder import require_made_for as require_made_for
    from gputopo.launch.data.folder import require_same as require_same
    from gputopo.launch.data.folder import require_sound as require_sound
    from gputopo.launch.data.make import DataRequest as DataRequest
    from gputopo.launch.data.make import make_data as make_data
    from gputopo.launch.data.tfrecords import masked_crc as masked_crc

_MODULES = {
    "DataRequest": "make",
    "Listing": "folder",
    "count_records": "folder",
    "find_damage": "folder",
    "find_data": "folder",
    "list_files": "folder",
    "make_data": "make",
    "masked_crc": "tfrecords",
    "read_cifar": "cifar_files",
    "require_made_for": "folder",
    "require_same": "folder",
    "require_sound": "folder",
    "write_cifar": "cifar_files",
    "wrong_fields": "examples",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
