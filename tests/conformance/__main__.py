"""`python -m tests.conformance`: which of the ONNX backend tests pass, by stage, and why the others do not."""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import suite


def part_of(text: str) -> tuple[int, int]:
    """I/N as two numbers. Raises `ArgumentTypeError`."""
    first, _, count = text.partition("/")
    if not (first.isdecimal() and count.isdecimal() and int(first) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with I from 0 to N - 1")
    return int(first), int(count)


def main() -> int:
    """Prints the table. Gives 1 where a case is wrong or fails without being refused, 2 where there is no case."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--stages", default="1", help="which stages, separated by commas (1)")
    parser.add_argument("--match", default="", help="only cases whose names contain this")
    parser.add_argument("--symbolic", action="store_true", help="turn every extent of the inputs into a symbol")
    parser.add_argument("--json", action="store_true", help="print the outcome of each case as JSON")
    parser.add_argument("--part", type=part_of, default=(0, 1), metavar="I/N", help="only every Nth case: I/N (0/1)")
    given = parser.parse_args()
    part, parts = given.part
    outcomes: dict[str, suite.Outcome] = {}
    begin = time.perf_counter()
    chosen = [
        case for case in suite.cases().values() if case.stage in given.stages.split(",") and given.match in case.name
    ]
    for case in chosen[part::parts]:
        if given.symbolic and not case.is_base:
            continue
        outcomes[case.name] = suite.run(suite.with_symbols(case) if given.symbolic else case, threads=1)
    if not outcomes:
        print("no case matches --stages, --match, --symbolic and --part", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({name: [one.kind, one.reason] for name, one in outcomes.items()}, indent=1))
        return 0
    table: dict[tuple[str, str], collections.Counter[str]] = {}
    for name, one in outcomes.items():
        case = suite.cases()[name]
        family = "expanded" if "_expanded" in name else name.partition("/")[0]
        for key in ((case.stage, family), (case.stage, "total")):
            table.setdefault(key, collections.Counter())[one.kind] += 1
    kinds = ("pass", "unsupported", "error", "wrong")
    print(f"{'stage':>5} {'cases':<20}" + "".join(f"{kind:>13}" for kind in kinds))
    for (stage, family), counts in sorted(table.items()):
        print(f"{stage:>5} {family:<20}" + "".join(f"{counts[kind]:>13}" for kind in kinds))
    for name, one in outcomes.items():
        if one.kind != "pass":
            print(f"{one.kind} {name}: {' '.join(one.reason.split())[:240]}")
    print(f"{time.perf_counter() - begin:.0f} s")
    return int(any(one.kind in ("error", "wrong") for one in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
