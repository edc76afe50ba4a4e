"""How tensors are cut, joined and led through a reduction, and spread over places: arithmetic alone."""

from collections.abc import Sequence

from gputopo.reduction_groups import Groups


def pieces(size: int, count: int) -> list[int]:
    """Cut `size` numbers into at most `count` pieces, in order: equal but for one number, none empty.

    The larger ones come first. A tensor without numbers is one piece of 0.
    """
    count = max(1, min(size, count))
    least, more = divmod(size, count)
    return [least + 1] * more + [least] * (count - more)


def small_runs(sizes: Sequence[int], small: int, most: int) -> list[list[int]]:
    """Give the numbers of tensors in groups that are reduced as one, in order.

    `sizes` in bytes. Neighbours of at most `small` bytes share a group, `most` of them at a time; every
    other tensor is a group by itself.
    """
    groups: list[list[int]] = []
    open_ = False
    for number, size in enumerate(sizes):
        joins = size <= small
        if joins and open_ and len(groups[-1]) < most:
            groups[-1].append(number)
        else:
            groups.append([number])
        open_ = joins
    return groups


def starts_of(count: int, towers: int, rings: int) -> list[int]:
    """Give the tower that each of `count` pieces starts at, ring by ring."""
    apart = max(1, towers // rings)
    return [(piece % towers + piece // towers * apart) % towers for piece in range(count)]


def leaders_of(groups: Groups, number: int) -> tuple[list[int], int]:
    """Give the tower that leads each group for a variable, and the group where the total is made."""
    rank, main = divmod(number, len(groups))
    return [group[rank % len(group)] for group in groups], main


def spread(sizes: Sequence[int], places: Sequence[str]) -> list[str]:
    """Give each variable the place that has the fewest bytes so far; of equal ones the first.

    `sizes` in numbers or bytes. As tf_cnn_benchmarks does with --local_parameter_device=gpu.
    """
    held = dict.fromkeys(places, 0)
    chosen = []
    for size in sizes:
        least = min(held, key=lambda place: held[place])
        held[least] += size
        chosen.append(least)
    return chosen
