"""The history of this box: past bandwidths and results of runs by machine, in one SQLite file.

The file is `history.sqlite` in `$GPUTOPO_HOME`, else in the user's data folder (`platformdirs`). A machine is
known by its fingerprint: a hash over facts that stay while no hardware changes, without identities. What was
measured between hosts is known by their names.
"""

from gputopo.runs.history.bandwidths import Saved, latest, latest_with_other_gpus, save
from gputopo.runs.history.file import FILE, date_in_words, history_file
from gputopo.runs.history.identity import answering, fingerprint, is_same_but_gpus
from gputopo.runs.history.networks import latest_network, save_network

__all__ = [
    "FILE",
    "Saved",
    "answering",
    "date_in_words",
    "fingerprint",
    "history_file",
    "is_same_but_gpus",
    "latest",
    "latest_network",
    "latest_with_other_gpus",
    "save",
    "save_network",
]
