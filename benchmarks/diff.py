"""What `perbit diff` takes for two checkpoints a few AdamW steps apart, beside zstd -3 of their XOR.

    python benchmarks/diff.py [--steps 4] [--width 256] [-o results/diff.json]

A small transformer learns to predict the symbols of a random source for some time; then two checkpoints are taken, some steps apart. In bfloat16 they
come from training in bfloat16 throughout (`bf16`), and from float32 weights that are rounded when they are saved (`bf16 of float32`). The float32
weights themselves are the last row. Every delta is applied and compared bit by bit. Sizes depend on the training alone, speeds on the machine.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from torch import nn
from torch.nn import functional

from perbit import delta
from perbit.coding.arrays import as_numpy, native_bytes, stored
from perbit.files import write_json

SYMBOLS, LENGTH, BATCH, WARM_UP = 256, 64, 16, 40
Arrays = dict[str, Any]


class Transformer(nn.Module):
    """Two layers; the symbols that follow are predicted from the last output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=self.head.weight.dtype)
        out: torch.Tensor = self.head(self.layers(self.embed(x), mask=mask, is_causal=True))
        return out


def checkpoints(width: int, steps: int, dtype: torch.dtype) -> tuple[Arrays, Arrays]:
    """The weights after WARM_UP steps, and after some more."""
    torch.manual_seed(0)
    follows = torch.randint(SYMBOLS, (SYMBOLS, 4))
    model = Transformer(width).to(dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    before: Arrays = {}
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            before = copy.deepcopy(model.state_dict())
        text = torch.randint(SYMBOLS, (BATCH, 1))
        for _ in range(LENGTH):
            following = follows[text[:, -1], torch.randint(4, (BATCH,))]
            text = torch.cat([text, following[:, None]], dim=1)
        optimiser.zero_grad()
        functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten()).backward()
        optimiser.step()
    return before, model.state_dict()


def rounded(state: Arrays) -> Arrays:
    return {name: x.bfloat16() for name, x in state.items()}


def measured(name: str, old: Arrays, new: Arrays) -> dict[str, Any]:
    """Sizes and speeds of one pair; the delta must lead to the very bits."""
    a, b = ({key: as_numpy(x) for key, x in state.items()} for state in (old, new))
    n_bytes = sum(x.nbytes for x in b.values())
    pairs = [
        (np.frombuffer(native_bytes(stored(a[key])), np.uint8), np.frombuffer(native_bytes(stored(b[key])), np.uint8))
        for key in b
    ]
    xor = np.concatenate([x ^ y for x, y in pairs]).tobytes()
    peer = len(zstandard.ZstdCompressor(level=3).compress(xor))
    began = time.perf_counter()
    made = delta.diff(a, b)
    encoded = time.perf_counter()
    got = delta.apply(a, made)
    ended = time.perf_counter()
    if any(bytes(native_bytes(stored(got[key]))) != bytes(native_bytes(stored(x))) for key, x in b.items()):
        raise SystemExit(f"{name}: the delta did not lead to the very bits")
    return {
        "pair": name,
        "n_bytes": n_bytes,
        "changed": float(
            np.mean(np.concatenate([x.reshape(-1) != y.reshape(-1) for x, y in ((a[k], b[k]) for k in b)]))
        ),
        "zstd_of_xor": peer,
        "delta": len(made),
        "ratio": len(made) / peer,
        "diff_mb_s": n_bytes / 1e6 / (encoded - began),
        "apply_mb_s": n_bytes / 1e6 / (ended - encoded),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    half, full = (checkpoints(options.width, options.steps, dtype) for dtype in (torch.bfloat16, torch.float32))
    pairs = {"bf16": half, "bf16 of float32": (rounded(full[0]), rounded(full[1])), "float32": full}
    print(
        f"{'':<16}{'MB':>8}{'changed':>9}{'zstd of XOR':>13}{'delta':>10}{'ratio':>8}{'diff MB/s':>11}{'apply MB/s':>12}"
    )
    rows = []
    for name, (old, new) in pairs.items():
        row = measured(name, old, new)
        rows.append(row)
        print(
            f"{name:<16}{row['n_bytes'] / 1e6:>8.2f}{row['changed']:>9.1%}{row['zstd_of_xor']:>13,}{row['delta']:>10,}{row['ratio']:>8.3f}"
            f"{row['diff_mb_s']:>11.0f}{row['apply_mb_s']:>12.0f}"
        )
    if options.output:
        sizes = ("pair", "n_bytes", "changed", "zstd_of_xor", "delta", "ratio")
        write_json(options.output, [{key: row[key] for key in sizes} for row in rows])


if __name__ == "__main__":
    main()
