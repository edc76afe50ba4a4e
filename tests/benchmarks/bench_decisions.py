"""Compares the planner's choice with simple rules on published decisions.

`python -m tests.benchmarks.bench_decisions`.

Prints how much slower each is than the fastest measured placement: the mean, the number within 2%, and the
worst. Also prints in how many decisions the choice is better or worse than the rule.
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
