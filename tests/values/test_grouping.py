from gputopo.values.grouping import medians_of_others


def test_each_is_compared_with_the_median_of_the_others() -> None:
    assert medians_of_others({0: 10.0, 1: 20.0, 2: 40.0}) == {0: 30.0, 1: 25.0, 2: 15.0}
    assert medians_of_others({0: 10.0, 1: 20.0}) == {0: 20.0, 1: 10.0}


def test_one_alone_has_no_others() -> None:
    assert medians_of_others({0: 10.0}) == medians_of_others({}) == {}
