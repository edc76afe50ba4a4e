"""The sweeps that ship with gputopo: files of `reference/data/sweeps`."""

from importlib import resources

from gputopo.values.errors import UsageError
from gputopo.values.option import listed, nearest, shown

PRESETS = ("quick", "scaling", "tf-official", "tensorpack", "lambda-cpu", "keras-multi-gpu")


def preset_text(name: str) -> str:
    """Return the TOML text of a preset. Raises UsageError with the nearest name."""
    if name not in PRESETS:
        near = nearest(name, PRESETS)
        hint = f"did you mean {near[0]}?" if near else f"the presets are {listed(PRESETS, 'and')}"
        raise UsageError(f"there is no preset {shown(name)}", f"{hint} A file is given with --matrix FILE")
    data = resources.files("gputopo.reference.data.sweeps").joinpath(f"{name}.toml")
    return data.read_text(encoding="utf-8")
