"""Train a small GPT on Shakespeare with workers that meet only now and then.

torchrun --standalone --nproc_per_node=2 examples/outer/train.py
torchrun --standalone --nproc_per_node=4 examples/outer/train.py --preset diloco_int4 --steps 1000
torchrun --standalone --nproc_per_node=2 examples/outer/train.py --checkpoint /tmp/gpt    # run again to go on
torchrun --standalone --nproc_per_node=2 examples/outer/train.py --transformers           # a model of Hugging Face in its place

The text comes with `perbit data tinyshakespeare`; --text takes any other file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import GPT, Text, loss_of
from torch import nn

import perbit.outer

BATCH, LENGTH = 8, 64  # of each worker


class Scores(nn.Module):
    """A causal language model of transformers with a random beginning: scores only."""

    def __init__(self, symbols: int) -> None:
        from transformers import AutoModelForCausalLM, GPT2Config

        super().__init__()
        shape = {"n_positions": LENGTH, "n_embd": 96, "n_layer": 2, "n_head": 4}
        config = GPT2Config(vocab_size=symbols, bos_token_id=0, eos_token_id=0, **shape)
        self.model = AutoModelForCausalLM.from_config(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.model(x).logits
        return scores


class Trainer:
    def __init__(self, text: Text, preset: str, transformers: bool, **changes: Any) -> None:
        torch.manual_seed(0)
        self.text, self.model = text, Scores(text.symbols) if transformers else GPT(text.symbols, LENGTH, depth=2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.outer = perbit.outer.preset(preset, self.model, **changes)  # the first of two lines
        self.number = 0

    def step(self) -> None:
        random = torch.Generator().manual_seed(1000 * self.number + dist.get_rank())
        x, y = self.text.batch(BATCH, LENGTH, dist.get_rank(), dist.get_world_size(), random)
        self.optimizer.zero_grad()
        loss_of(self.model(x), y).backward()
        self.optimizer.step()
        self.outer.step()  # the second
        self.number += 1

    @torch.no_grad()
    def loss(self) -> float:
        x, y = self.text.test(64, LENGTH)
        with self.outer.shared_values():
            return float(loss_of(self.model(x), y))

    # --- checkpoints: a file for each worker, replaced only once it is whole ------------------------------------------

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"worker{dist.get_rank()}.pt"
        parts = {part: getattr(self, part).state_dict() for part in ("model", "optimizer", "outer")}
        torch.save({**parts, "number": self.number}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, folder: Path) -> None:
        path = folder / f"worker{dist.get_rank()}.pt"
        if path.exists():
            saved = torch.load(path, weights_only=True)
            for part in ("model", "optimizer", "outer"):
                getattr(self, part).load_state_dict(saved[part])
            self.number = saved["number"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="rd", choices=perbit.outer.PRESETS)
    parser.add_argument("--every", type=int, default=30, help="local steps between exchanges")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--text", type=Path, help="a file to learn in place of Shakespeare")
    parser.add_argument(
        "--transformers", action="store_true", help="a GPT-2 of the transformers package, with a random beginning"
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="a folder; if it holds a checkpoint, training goes on from there"
    )
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    given = parser.parse_args()

    dist.init_process_group("gloo")
    trainer = Trainer(Text(given.text), given.preset, given.transformers, every=given.every)
    if given.checkpoint:
        trainer.load(given.checkpoint)
    begin = time.perf_counter()
    while trainer.number < given.steps:
        trainer.step()
        if trainer.number % 100 == 0 or trainer.number == given.steps:
            if given.checkpoint:
                trainer.save(given.checkpoint)
            if dist.get_rank() == 0:
                print(
                    f"step {trainer.number}: loss {trainer.loss():.3f}, {time.perf_counter() - begin:.1f} s", flush=True
                )
    seconds, metrics = time.perf_counter() - begin, trainer.outer.metrics()
    if dist.get_rank() == 0:
        print(
            f"each worker sent {metrics['total_bytes'] / 1e6:.3f} MB, {metrics['total_ratio']:.0f} times less than float32 at every exchange; "
            f"training stood still for {metrics['stalled_seconds']:.1f} of {seconds:.1f} s"
        )
        if given.json:
            given.json.write_text(json.dumps({"loss": trainer.loss(), "seconds": seconds, **metrics}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
