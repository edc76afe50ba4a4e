"""The options of `gputopo sweep` that decide about its cells, and about when they run."""

from typing import Annotated, Any, Literal

import msgspec

from gputopo.launch.spec.readers import read_data_folder
from gputopo.values.option import Option


class CellOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What changes the cells of a new sweep, or their order."""

    THEME = "Cells"

    compare_pairs: Annotated[
        bool, Option("--compare-pairs", "Also run the presets' pairs of GPUs: two of each kind of link")
    ] = False
    data_dir: Annotated[
        str | None,
        Option(
            "--data-dir",
            "ImageNet's TFRecords for the cells of presets with real input",
            value="DIR",
            default="a small folder of drawn images, made for the sweep",
            read=read_data_folder,
        ),
    ] = None
    order: Annotated[
        Literal["listed", "rounds", "random"] | None,
        Option("--order", "Order of the cells; random: by --seed", default="that of the matrix"),
    ] = None
    seed: Annotated[
        int | None, Option("--seed", "Of a random order", min=0, default="by the clock; it is stated")
    ] = None
    cpu: Annotated[bool, Option("--cpu", "Use CPU devices; GPUs and their driver do not matter")] = False

    @property
    def given(self) -> dict[str, Any]:
        """Those that were given, by name."""
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not None and value is not False}


class PaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be changed when a sweep goes on; None: as it began, at first as the matrix states."""

    THEME = "Pace"

    time_budget: Annotated[
        float | None,
        Option(
            "--time-budget",
            "Start no cell that would not end within so many seconds; a killed sweep goes on with the rest",
            value="SECONDS",
            above=0,
            default="that of the matrix, or what is left of it",
        ),
    ] = None
    cool_down: Annotated[
        float | None,
        Option("--cool-down", "Pause before each cell", value="SECONDS", min=0, default="that of the matrix"),
    ] = None
    cool_below: Annotated[
        float | None,
        Option(
            "--cool-below",
            "Wait before each cell until all GPUs are below this temperature",
            value="CELSIUS",
            above=0,
            default="that of the matrix",
        ),
    ] = None
