"""Each drill of the kit with its usual numbers: the report meets the requirements."""

import pytest

from tests.kit.drills.hosts import HOST_DRILLS
from tests.kit.drills.judged import complaints
from tests.kit.drills.table import DRILLS, Dice

SEED = 7
ALL = {**DRILLS, **HOST_DRILLS}


@pytest.mark.parametrize("name", ALL)
def test_the_report_on_a_drill_is_what_somebody_who_knows_gpus_would_say(name: str) -> None:
    assert complaints(ALL[name](Dice()), SEED) == []
