"""Record real gradients and updates: `python tools/make_gradients.py [cnn] [cnn_updates] …` writes <data root>/gradients/*.npz.

Gradients of one mini-batch, in training by Adam: the Table-I CNN on CIFAR-10 (lr 1e-4, batch 32, as in the paper on mw-L₂ quantizers) at several
steps; ResNet-20 on CIFAR-10; the 4.05 M-parameter LSTM as next-word model; a small transformer as next-character model; NCF on MovieLens, whose
gradient is sparse by nature.

Updates of one client of federated averaging, which trains on data of its own after a warm-up on everybody's: CNN (SGD, lr .1, batch 32, as in
experiments/cnn-long.toml) after one local epoch early and five late in training, ResNet-20 and the transformer (Adam) after one. The LSTM's (SGD, lr
.3, batch 16, as in DeepReduce) goes on with everybody's data. Parameters only: batch norm's running statistics are not recorded.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from perbit import files
from perbit.sim.data import Dataset, load
from perbit.sim.partition import partition
from perbit_papers import gradients
from perbit_papers.data import store


def cnn(out: Path) -> None:
    steps = (50, 100, 200, 400, 800)
    for step, tensors in gradients.collect(load("cifar10"), "cnn", 800, at=steps, progress=show):
        save(out / f"cnn_cifar10_step{step}.npz", tensors)


def cnn_updates(out: Path) -> None:
    data = load("cifar10")
    for name, warm_up, epochs in (("early", 200, 1), ("late", 2000, 5)):
        save(out / f"cnn_update_{name}.npz", local_epochs(data, "cnn", "dirichlet(0.5)", 25, warm_up, epochs))


def resnet20(out: Path) -> None:
    for _, tensors in gradients.collect(load("cifar10"), "resnet20", 200, rate=1e-3, progress=show):
        save(out / "resnet20_cifar10.npz", tensors)


def resnet20_update(out: Path) -> None:
    save(out / "resnet20_update.npz", local_epochs(load("cifar10"), "resnet20", "dirichlet(0.5)", 25, 500, 1))


def lstm(out: Path) -> None:
    for _, tensors in gradients.collect(load("shakespeare-words"), "lstm", 100, batch=16, rate=1e-3, progress=show):
        save(out / "lstm_shakespeare.npz", tensors)


def lstm_update(out: Path) -> None:
    save(out / "lstm_update.npz", gradients.update(load("shakespeare-words"), "lstm", 32, warm_up=96, progress=show))


def gpt(out: Path) -> None:
    for _, tensors in gradients.collect(load("shakespeare"), "gpt", 400, rate=1e-3, progress=show):
        save(out / "gpt_shakespeare.npz", tensors)


def gpt_update(out: Path) -> None:
    save(out / "gpt_update.npz", local_epochs(load("shakespeare"), "gpt", "natural", 20, 400, 1, 16, 1e-3, "adam"))


def ncf(out: Path) -> None:
    for _, tensors in gradients.collect(load("movielens"), "ncf", 300, batch=1024, rate=1e-3, progress=show):
        save(out / "ncf_movielens.npz", tensors)


def local_epochs(
    data: Dataset,
    model: str,
    kind: str,
    clients: int,
    warm_up: int,
    epochs: int,
    batch: int = 32,
    rate: float = 0.1,
    optimiser: Literal["sgd", "adam"] = "sgd",
) -> gradients.Tensors:
    """What the first of `clients`, between whom `kind` divides the data, sends after `epochs` on its own samples."""
    own = replace(data, train=data.train.take(partition(kind, data.train, clients)[0]))
    steps = epochs * (len(own.train) // batch)
    return gradients.update(
        data, model, steps, client=own, warm_up=warm_up, batch=batch, rate=rate, optimiser=optimiser, progress=show
    )


def show(step: int, loss: float) -> None:
    if step % 20 == 0:
        print(f"\r  step {step}, loss {loss:.3f}", end="", file=sys.stderr, flush=True)


def save(path: Path, tensors: gradients.Tensors) -> None:
    files.write_tensors(path, tensors)
    n, zeros = (sum(int(f(a)) for a in tensors.values()) for f in (lambda a: a.size, lambda a: (a == 0).sum()))
    print(f"{path}: {n} values in {len(tensors)} tensors, {zeros / n:.1%} exact zeros", flush=True)


ORDER = (cnn, cnn_updates, resnet20, resnet20_update, lstm, lstm_update, gpt, gpt_update, ncf)
RECORDINGS = {function.__name__: function for function in ORDER}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECORDINGS)}; all by default")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    out = store.data_root() / "gradients"
    out.mkdir(parents=True, exist_ok=True)
    for name in options.names or RECORDINGS:
        RECORDINGS[name](out)


if __name__ == "__main__":
    main()
