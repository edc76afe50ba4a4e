from gputopo.launch.hosts.gathering.patience import (
    CONNECTION_S,
    EVERY_S,
    LOOK_S,
    REQUEST_S,
    SILENT_S,
    Silence,
)


def test_silence_adds_up_from_the_last_word() -> None:
    silence = Silence(100.0, expected_s=1.0)
    assert silence.look(100.5) == 0.5
    assert silence.look(101.0) == 1.0
    silence.heard(101.5)
    assert silence.look(101.75) == 0.25


def test_a_time_in_which_this_host_was_stopped_is_no_silence_of_the_other() -> None:
    silence = Silence(100.0, expected_s=1.0)
    silence.look(100.5)
    assert silence.look(3700.0) == 1.5


def test_a_dead_host_is_named_within_fifteen_seconds() -> None:
    assert SILENT_S + EVERY_S + LOOK_S < 15


def test_a_host_gives_a_request_up_before_rank_0_cuts_it_off() -> None:
    assert REQUEST_S < CONNECTION_S
