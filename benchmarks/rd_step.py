"""What `rd` costs beside training: one gradient of a transformer with 25 million parameters, encoded and decoded, against the step that made it.

    python benchmarks/rd_step.py        writes results/rd_step.json

One thread; processor time; best of three. The step is forward, backward and AdamW for 8 sequences of 128 tokens; the codec is `rd` at -10 dB by a
step that was found before (what a training loop does that keeps its step), by `bits`, and `uniform(4) | rans`; memcpy is a copy of the gradient.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import perbit
from perbit import files

RESULTS = Path("results/rd_step.json")
WIDTH, LAYERS, TOKENS, BATCH, LENGTH = 512, 8, 256, 8, 128
REPEATS = 3


class Model(torch.nn.Module):
    """A causal transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.output = torch.nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        logits: torch.Tensor = self.output(self.layers(self.embedding(tokens), mask, is_causal=True))
        return logits


def best(run: Callable[[], object]) -> float:
    """The least processor seconds of several runs."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(TOKENS, (BATCH, LENGTH + 1)) // 4 * torch.randint(1, 3, (BATCH, 1))

    def step() -> None:
        optimiser.zero_grad()
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimiser.step()

    for _ in range(3):
        step()
    gradient = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    values = sum(x.size for x in gradient.values())
    frame = perbit.dumps(gradient, "rd(db=-10)")
    spec = str(
        next(t["spec"] for t in perbit.inspect(frame, max_values=values)["tensors"] if t["spec"].startswith("rd("))
    )
    seconds = {"training step": best(step), "memcpy": best(lambda: [x.copy() for x in gradient.values()])}
    for name, codec in (
        (f"{spec}, -10 dB", spec),
        ("rd(bits=0.1)", "rd(bits=0.1)"),
        ("uniform(4) | rans", "uniform(4) | rans"),
    ):
        coded = perbit.dumps(gradient, codec)
        seconds[f"encode {name}"] = best(lambda codec=codec: perbit.dumps(gradient, codec))  # type: ignore[misc]
        seconds[f"decode {name}"] = best(lambda coded=coded: perbit.loads(coded, max_values=values))  # type: ignore[misc]
        print(f"{name}: {8 * len(coded) / values:.4f} bits a value")
    for name, value in seconds.items():
        print(
            f"{name:32} {value:8.3f} s   {value / seconds['training step']:.3f} steps   {4e-6 * values / value:8.0f} MB/s"
        )
    files.write_json(RESULTS, {"parameters": values, "tokens": BATCH * LENGTH, "seconds": seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
