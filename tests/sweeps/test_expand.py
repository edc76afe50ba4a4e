"""From a matrix to cells: all combinations on this machine, and nothing dropped in silence."""

from itertools import combinations, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.sweeps import CellBox, Expanded, Matrix, MatrixTable, Value, When, expand_matrix
from gputopo.values.errors import UsageError

CPU = CellBox(backend="cpu")
HOPS = {pair: "PIX" if pair[0] // 2 == pair[1] // 2 else "PHB" for pair in combinations(range(4), 2)}
FOUR = CellBox(backend="gpu", gpus=(0, 1, 2, 3), links=HOPS, default_devices=4)


def of(axes: dict[str, tuple[Value, ...]], box: CellBox = CPU, **more: object) -> Expanded:
    return expand_matrix(Matrix(title="T", tables=(MatrixTable(name="1", axes=axes),), **more), box)  # type: ignore[arg-type]


values = st.lists(st.integers(1, 99) | st.sampled_from(["a", "b", "c", False, True]), min_size=1, max_size=4)
axes_ = st.dictionaries(st.sampled_from(["model", "batch_size", "xla", "ps"]), values, min_size=1)


@given(axes_, st.integers(1, 3))
def test_every_combination_is_a_cell_a_duplicate_or_excluded(
    axes: dict[str, list[Value]], repeats: int
) -> None:
    found = of({name: tuple(listed) for name, listed in axes.items()}, repeats=repeats)
    assert len(found.cells) + repeats * found.duplicates == repeats * prod(map(len, axes.values()))
    assert [cell.number for cell in found.cells] == list(range(1, len(found.cells) + 1))
    assert len({cell.name for cell in found.cells}) == len(found.cells)
    combined = {tuple(sorted((n, str(v)) for n, v in cell.options.items())) for cell in found.cells}
    wanted = {
        tuple(sorted((n, str(v)) for n, v in zip(axes, one, strict=True) if v is not False))
        for one in product(*axes.values())
    }
    assert combined == wanted


@given(st.text(max_size=80))
def test_a_folder_s_name_holds_nothing_that_leaves_the_folder(text: str) -> None:
    (cell,) = of({"model": (text,)}).cells
    assert "/" not in cell.name
    assert cell.name.startswith("0001")
    assert cell.name.isascii()


@given(axes_, st.integers(0, 99))
def test_a_random_order_is_a_permutation_and_the_same_for_a_seed(
    axes: dict[str, list[Value]], seed: int
) -> None:
    cells = of({name: tuple(listed) for name, listed in axes.items()}, repeats=2).cells
    random = Matrix(tables=(), order="random")
    shuffled = random.ordered(cells, seed)
    assert sorted(cell.number for cell in shuffled) == [cell.number for cell in cells]
    assert shuffled == random.ordered(cells, seed)


def test_rounds_run_each_cell_once_before_any_again() -> None:
    cells, rounds = of({"batch_size": (1, 2)}, repeats=2).cells, Matrix(tables=(), order="rounds")
    assert [(cell.options["batch_size"], cell.repeat) for cell in rounds.ordered(cells, None)] == [
        ("1", 1),
        ("2", 1),
        ("1", 2),
        ("2", 2),
    ]


@pytest.mark.parametrize(
    ("name", "word", "found"),
    [
        ("num_gpus", "doubling", ["1", "2", "4"]),
        ("num_gpus", "counted", ["1", "2", "3", "4"]),
        ("gpus", "each", ["0", "1", "2", "3"]),
        ("gpus", "pairs", ["0,1", "0,2", "0,3", "1,2", "1,3", "2,3"]),
        ("gpus", "pairs-by-link", ["0,1", "2,3", "0,2", "0,3"]),
    ],
)
def test_a_word_stands_for_what_the_machine_has(name: str, word: str, found: list[str]) -> None:
    assert [cell.options[name] for cell in of({name: (word,)}, FOUR).cells] == found


def test_what_a_machine_cannot_show_is_left_out_with_the_reason() -> None:
    (pairs,) = of({"gpus": ("pairs",)}, CPU, repeats=3).cells
    assert (pairs.state, pairs.reason) == (
        "left_out",
        "No NVIDIA device: CPU devices share all cores and are equal",
    )
    two, eight = of({"num_gpus": (2, 8)}, FOUR).cells
    assert (two.state, eight.state, eight.reason) == ("pending", "left_out", "this machine has 4 usable GPUs")


def test_a_set_changes_matching_cells_and_equal_ones_become_one() -> None:
    smaller = When(match={"backend": ("cpu",)}, sets={"batch_size": 4}, reason="batch 4 on CPU devices")
    found = of({"model": ("alexnet", "vgg16"), "batch_size": (32, 64)}, sets=(smaller,))
    assert [(cell.options["batch_size"], cell.notes) for cell in found.cells] == [
        ("4", ("batch 4 on CPU devices",))
    ] * 2
    assert found.duplicates == 2
    assert [c.options["batch_size"] for c in of({"batch_size": (32, 64)}, FOUR, sets=(smaller,)).cells] == [
        "32",
        "64",
    ]


def test_an_exclusion_with_a_reason_stays_and_one_without_is_counted() -> None:
    said = When(match={"model": ("vgg16",)}, reason="too large")
    silent = When(match={"model": ("alexnet",), "devices": (2,)})
    found = of({"model": ("alexnet", "vgg16", "resnet50"), "num_gpus": (1, 2)}, exclude=(said, silent))
    assert [(cell.options["model"], cell.state) for cell in found.cells] == [
        ("alexnet", "pending"),
        ("vgg16", "left_out"),
        ("vgg16", "left_out"),
        ("resnet50", "pending"),
        ("resnet50", "pending"),
    ]
    assert found.excluded == 1


def test_only_cells_that_match_one_of_the_only_tables_run() -> None:
    only = (When(match={"model": ("alexnet",)}), When(match={"xla": (True,)}))
    found = of({"model": ("alexnet", "vgg16"), "xla": (False, True)}, only=only)
    assert [cell.options for cell in found.cells] == [
        {"model": "alexnet"},
        {"model": "alexnet", "xla": True},
        {"model": "vgg16", "xla": True},
    ]
    assert found.excluded == 1


def test_a_matrix_without_bounds_is_refused() -> None:
    with pytest.raises(UsageError, match="1000000 cells"):
        of({name: tuple(range(100)) for name in ("a", "b", "c")})
