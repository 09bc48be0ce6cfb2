"""Train on the digits of scikit-learn with several processes, gradients as coded bytes.

torchrun --standalone --nproc_per_node=2 examples/ddp/train.py
torchrun --standalone --nproc_per_node=2 examples/ddp/train.py --plain
torchrun --standalone --nproc_per_node=2 examples/ddp/train.py --epochs 10 --checkpoint /tmp/digits   # run again to go on
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perbit.engines import ddp

BATCH = 32  # of each rank


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures and labels; every fifth is for testing."""
    x, y = load_digits(return_X_y=True)
    pictures, labels = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    is_test = torch.arange(len(y)) % 5 == 0
    return pictures[~is_test], labels[~is_test], pictures[is_test], labels[is_test]


def make_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


class Trainer:
    """A model, its optimizer, and the state of the hook unless gradients travel plainly."""

    def __init__(self, spec: str | None, width: int) -> None:
        self.model = DistributedDataParallel(make_model(width))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.8)
        self.state = None
        if spec:  # the two lines that matter
            self.state = ddp.State(spec, self.model)
            self.model.register_comm_hook(self.state, ddp.hook)

    def epoch(self, number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        """Every rank takes its share of the same permutation."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(number))
        for batch in order.split(BATCH * dist.get_world_size()):
            mine = batch[dist.get_rank() :: dist.get_world_size()]
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x[mine]), y[mine]).backward()
            self.optimizer.step()

    @torch.no_grad()
    def accuracy(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return float((self.model.module(x).argmax(1) == y).float().mean())

    def save(self, folder: Path, epoch: int) -> None:
        """One file for each rank: error memories are its own. A file is replaced only once it is whole."""
        parts = {"epoch": epoch, "model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.state:
            parts["perbit"] = self.state.state_dict()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{dist.get_rank()}.pt"
        torch.save(parts, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, folder: Path) -> int:
        """The epoch to go on with: 0 without a checkpoint."""
        path = folder / f"rank{dist.get_rank()}.pt"
        if not path.exists():
            return 0
        parts = torch.load(path, weights_only=True)
        self.model.module.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        if self.state:
            self.state.load_state_dict(parts["perbit"])
        return int(parts["epoch"]) + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default="topk(0.01) | fp16", help="how gradients travel")
    parser.add_argument("--plain", action="store_true", help="float32 all-reduce instead")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=512, help="of the two hidden layers")
    parser.add_argument(
        "--checkpoint", type=Path, help="a folder; if it holds a checkpoint, training goes on from there"
    )
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    given = parser.parse_args()

    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    x, y, test_x, test_y = digits()
    trainer = Trainer(None if given.plain else given.spec, given.width)
    first = trainer.load(given.checkpoint) if given.checkpoint else 0
    begin, curve = time.perf_counter(), []
    for epoch in range(first, given.epochs):
        trainer.epoch(epoch, x, y)
        curve.append((time.perf_counter() - begin, trainer.accuracy(test_x, test_y)))
        if given.checkpoint:
            trainer.save(given.checkpoint, epoch)
        if is_first:
            sent = f", {trainer.state.sent_bytes / 1e6:.3f} MB sent" if trainer.state else ""
            print(f"epoch {epoch}: accuracy {curve[-1][1]:.3f}, {curve[-1][0]:.1f} s{sent}", flush=True)

    if is_first and trainer.state:
        sent, dense = trainer.state.sent_bytes / 1e6, trainer.state.dense_bytes / 1e6
        print(f"each rank sent {sent:.3f} MB, {dense / sent:.0f} times less than float32 ({dense:.1f} MB)")
    if is_first and given.json:
        sent_bytes = trainer.state.sent_bytes if trainer.state else None
        given.json.write_text(json.dumps({"curve": curve, "sent_bytes": sent_bytes}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
