import pytest

from tests.kit.cuda.derive import from_scenario
from tests.kit.cuda.layouts import named
from tests.kit.cuda.words import spoilt


def test_a_word_that_does_not_go_with_the_machine_is_refused() -> None:
    for word in ["nonsense", "wrong@h2d:9", "wrong@0-1", "fail@h2d:1", "lost@7", "rate@h2d:1=0", "nop2p@0-9"]:
        with pytest.raises(ValueError, match=word):
            spoilt(from_scenario(named("four")), [word])
