"""Published trainings of several hosts: no constant was fitted to them."""

from statistics import median

import pytest

from gputopo.prediction.published.hosts import SOURCES, main, published_of_hosts


def test_most_published_figures_of_several_hosts_are_near_their_predictions() -> None:
    errors = {
        name: [abs(row.error) for row in published_of_hosts() if row.source == name] for name in SOURCES
    }
    assert (len(errors["tensorflow.org"]), len(errors["piz-daint"])) == (15, 3)
    assert median(errors["tensorflow.org"]) < 0.05
    assert max(errors["tensorflow.org"]) < 0.20
    assert max(errors["piz-daint"]) < 0.06


def test_a_figure_of_an_older_grpc_is_known_to_be_far_off() -> None:
    (row,) = (row for row in published_of_hosts() if row.note)
    assert row.error > 0.3


def test_every_source_has_its_figures_and_its_errors_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    out = capsys.readouterr().out
    assert len(out.splitlines()) == len(published_of_hosts()) + len(SOURCES)
