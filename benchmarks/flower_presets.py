"""Every preset with its own codecs, and every line of docs/engines.md, under Flower's strategies: accuracy and bytes.

    python benchmarks/flower_presets.py                    all presets and lines with FedAvg; about ten minutes on one core
    python benchmarks/flower_presets.py --quick            ten rounds of four nodes
    python benchmarks/flower_presets.py --strategies       the lines with FedAdam, FedMedian, FedTrimmedAvg and MultiKrum

The network with batch norm of examples/flower learns digits on ten nodes for 25 rounds, in one process: real strategies, real ClientApps,
real frames, no sockets. The ratios count everything from the first model on. One image of the 359 for testing is 0.3 points.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid, strategy

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from flower_digits import QUICK, WHOLE, Setting, documented, made_by, outcome_of, plain_accuracy
from perbit.engines.flower import CompressedGrid
from perbit.files import write_atomically
from perbit.protocols.presets import PRESETS

Make = Callable[[Grid], CompressedGrid]
STRATEGIES = ("FedAdam", "FedMedian", "FedTrimmedAvg", "MultiKrum")
OPTIONS: dict[str, dict[str, Any]] = {
    "FedAdam": {"eta": 0.03},
    "MultiKrum": {"num_malicious_nodes": 2, "num_nodes_to_select": 5},
}


def cases(with_presets: bool) -> Iterator[tuple[str, Make]]:
    if with_presets:
        for name in PRESETS:
            if name != "ghost":
                yield name, partial(CompressedGrid, protocol=name, seed=1)
    for line, before in documented().items():
        yield line, made_by(line, before)


def rows(setting: Setting, names: tuple[str, ...], with_presets: bool, only: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        made = _strategy(name)
        plain = plain_accuracy(setting, made)
        yield {"strategy": name, "case": "without perbit", "accuracy": plain, "points": 0.0}
        for case, make in cases(with_presets):
            if only and case not in only:
                continue
            outcome = outcome_of(make, setting, made)
            points = 100 * (outcome.accuracy - plain)
            yield {"strategy": name, "case": case, "accuracy": outcome.accuracy, "points": points, **outcome.traffic.summary()}  # fmt: skip


def _strategy(name: str) -> Any:
    return partial(getattr(strategy, name), **OPTIONS.get(name, {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--strategies", action="store_true", help="the lines of the docs with other strategies")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="these presets and lines")
    parser.add_argument("--output", type=Path, help="a JSON file for the rows")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    done = []
    print(f"{'':80} {'accuracy':>8} {'points':>6} {'up':>6} {'down':>6}")
    names = STRATEGIES if given.strategies else ("FedAvg",)
    for row in rows(QUICK if given.quick else WHOLE, names, not given.strategies, given.only):
        ratios = [f"{row[way]:5.1f}x" if way in row else "" for way in ("up_ratio", "down_ratio")]
        name = f"{row['strategy']}: {row['case']}"
        print(f"{name:80} {row['accuracy']:8.4f} {row['points']:+6.1f} {ratios[0]:>6} {ratios[1]:>6}", flush=True)
        done.append(row)
    if given.output:
        write_atomically(given.output, lambda file: file.write(json.dumps(done, indent=1).encode()))


if __name__ == "__main__":
    main()
