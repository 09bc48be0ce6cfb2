"""Train on the digits of scikit-learn with Ray Train, gradients as coded bytes.

    pip install "perbit[torch]" "ray[train]" scikit-learn
    python examples/ray/train.py [--workers 2] [--epochs 5]

The one line for perbit is `ddp.compress`.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import nn

from perbit.engines import ddp

BATCH = 32  # of each worker


def train(config: dict[str, Any]) -> None:
    """What every worker does."""
    rank, world = (getattr(ray.train.get_context(), f"get_world_{what}")() for what in ("rank", "size"))
    x, y = load_digits(return_X_y=True)
    pictures, labels = torch.tensor(x[rank::world], dtype=torch.float32) / 16, torch.tensor(y[rank::world])
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model = prepare_model(module)
    state = ddp.compress(model, config["spec"])  # the line that matters
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    for epoch in range(config["epochs"]):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH)[: len(y) // world // BATCH]:  # as many steps on every worker
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        ray.train.report({"loss": loss.item(), "ratio": state.ratio})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--spec", default="topk(0.01) | qsgd(15) | rans")
    given = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config={"spec": given.spec, "epochs": given.epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=given.workers),
        torch_config=TorchConfig(backend="gloo"),
    )
    metrics = trainer.fit().metrics
    assert metrics is not None
    print(f"loss {metrics['loss']:.3f}, {metrics['ratio']:.0f} times fewer gradient bytes")


if __name__ == "__main__":
    main()
