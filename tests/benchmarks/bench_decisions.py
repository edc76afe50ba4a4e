"""Compares the choice with rules of one line on published decisions.

`python -m tests.benchmarks.bench_decisions`.

Each loses a share of the fastest placement that was measured: the mean, how many are within 2%, the worst;
and in how many decisions the choice is better or worse than the rule.
"""

from statistics import fmean

from tests.published.decisions import NEAR, RULES, published_decisions


def main() -> None:
    """Print a line for each rule."""
    rows = published_decisions()
    losses = {name: [one.loss(choose(one)) for one in rows] for name, choose in RULES.items()}
    slower = sum("nccl" in one.speeds and one.loss("nccl") > 0 for one in rows)
    print(f"{len(rows)} decisions; NCCL is not the fastest in {slower}")
    print(f"{'':32} {'mean loss':>9} {'within 2%':>9} {'worst':>7}  better, worse than `plan`")
    for name, each in losses.items():
        near = fmean(loss <= NEAR for loss in each)
        pairs = list(zip(each, losses["plan"], strict=True))
        better, worse = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        print(f"{name:32} {fmean(each):9.2%} {near:9.0%} {max(each):7.1%}  {better}, {worse}")


if __name__ == "__main__":
    main()
