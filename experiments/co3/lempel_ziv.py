"""CO₃'s baseline: Lempel-Ziv in place of Huffman, on the symbols of fp4 and fp8.

    python experiments/co3/lempel_ziv.py GRADIENTS.npz … [--output results/co3_lempel_ziv.json]

Bits a value of real frames, over all large tensors of every recording. Deflate and Zstandard are Lempel-Ziv coders with an entropy coder of
their own behind them; they see the packed symbols.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import perbit
from perbit.files import read_tensors
from perbit.plan import Plan
from perbit_papers.results import RESULTS, write_json

CONVERTERS = {"fp4": "fp(2, 1)", "fp8": "fp(5, 2)"}
CODERS = ("pack", "pack | deflate", "pack | zstd", "huffman", 'huffman(prior="always")', "rans")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=RESULTS / "co3_lempel_ziv.json")
    options = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    for name, converter in CONVERTERS.items():
        for coder in CODERS:
            n_bytes = n_values = 0
            for path in options.recordings:
                tensors = read_tensors(path)
                assert isinstance(tensors, dict), f"{path} holds no named tensors"
                large = {key: x for key, x in tensors.items() if x.ndim > 1 and x.size >= 1024}
                n_bytes += len(perbit.dumps(large, Plan.of(f"{converter} | {coder}"), seed=0))
                n_values += sum(x.size for x in large.values())
            rows.setdefault(coder, {})[name] = 8 * n_bytes / n_values
    print(f"{'coder':<26}" + "".join(f"{name:>8}" for name in CONVERTERS) + "   bits a value")
    for coder, bits in rows.items():
        print(f"{coder:<26}" + "".join(f"{bits[name]:8.3f}" for name in CONVERTERS))
    write_json(options.output, {"recordings": [path.name for path in options.recordings], "bits": rows})


if __name__ == "__main__":
    main()
