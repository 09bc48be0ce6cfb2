"""Record real gradients for experiments: `python tools/make_gradients.py [cnn] [resnet20] [lstm] [ncf]` writes <data root>/gradients/*.npz.

Table-I CNN on CIFAR-10 (Adam, lr 1e-4, batch 32, as in the paper on mw-L₂ quantizers) at several steps; ResNet-20 on CIFAR-10; one client's update of
the 4.05 M-parameter LSTM as next-word model (SGD, lr .3, batch 16, as in DeepReduce); NCF on MovieLens, whose gradient is sparse by nature.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from perbit import files
from perbit.sim.data import load
from perbit_papers import gradients
from perbit_papers.data import store


def cnn(out: Path) -> None:
    steps = (50, 100, 200, 400, 800)
    for step, tensors in gradients.collect(load("cifar10"), "cnn", 800, at=steps, progress=show):
        save(out / f"cnn_cifar10_step{step}.npz", tensors)


def resnet20(out: Path) -> None:
    for _, tensors in gradients.collect(load("cifar10"), "resnet20", 200, rate=1e-3, progress=show):
        save(out / "resnet20_cifar10.npz", tensors)


def lstm(out: Path) -> None:
    save(out / "lstm_update.npz", gradients.update(load("shakespeare-words"), "lstm", 32, warm_up=96, progress=show))


def ncf(out: Path) -> None:
    for _, tensors in gradients.collect(load("movielens"), "ncf", 300, batch=1024, rate=1e-3, progress=show):
        save(out / "ncf_movielens.npz", tensors)


def show(step: int, loss: float) -> None:
    if step % 20 == 0:
        print(f"\r  step {step}, loss {loss:.3f}", end="", file=sys.stderr, flush=True)


def save(path: Path, tensors: gradients.Tensors) -> None:
    files.write_tensors(path, tensors)
    n, zeros = (sum(int(f(a)) for a in tensors.values()) for f in (lambda a: a.size, lambda a: (a == 0).sum()))
    print(f"{path}: {n} values in {len(tensors)} tensors, {zeros / n:.1%} exact zeros", flush=True)


RECORDINGS = {function.__name__: function for function in (cnn, resnet20, lstm, ncf)}


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
