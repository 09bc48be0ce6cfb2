"""Coding tensors on a GPU: with Triton's kernels there, against copying them to the host first.

    python benchmarks/device_kernels.py [--values 1000000 25000000] [--repeats 5]

Prints how many times faster `perbit.torch.encode` and `decode_add` are with kernels (best of several, in turn, in one process), and
checks that both ways give the same bytes. The name is not triton.py, which Python would take for the package.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import perbit.torch
from perbit.torch import device

SPECS = (
    "topk(0.01)",
    "topk(0.01) | qsgd(15) | rans",
    "qsgd(15) | rans",
    "qsgd(1) | pack",
    "uniform(4) | rans",
    "fp(2, 1) | rans",
    "topk(0.2) | mwl2(2, 2) | rans",
)


def best(ways: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """The least seconds of each way; they take turns."""
    seconds = dict.fromkeys(ways, float("inf"))
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            way()
            torch.cuda.synchronize()
            if repeat:  # the first time compiles
                seconds[name] = min(seconds[name], time.perf_counter() - begin)
    return seconds


def compare(spec: str, n: int, repeats: int) -> tuple[float, float]:
    """How many times faster kernels are than the way over the host: encoding, and adding a decoded frame."""
    x, total = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    frames: dict[str, bytes] = {}

    def encode(name: str, *kinds: str) -> Callable[[], None]:
        def way() -> None:
            with device.using(*kinds):
                frames[name] = perbit.torch.encode(x, spec, seed=0)

        return way

    def add(*kinds: str) -> Callable[[], None]:
        def way() -> None:
            with device.using(*kinds):
                perbit.torch.decode_add(frames["kernels"], total, 0.5)

        return way

    encoding = best({"kernels": encode("kernels", "cuda"), "host": encode("host")}, repeats)
    if frames["kernels"] != frames["host"]:
        raise SystemExit(f"{spec}: the frames differ; please report this with the name of the GPU")
    adding = best({"kernels": add("cuda"), "host": add()}, repeats)
    return encoding["host"] / encoding["kernels"], adding["host"] / adding["kernels"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, nargs="+", default=[1_000_000, 25_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available() or not device.serves(torch.device("cuda")):
        print("There is no GPU here that device kernels can use, so there is nothing to measure.")
        return
    print(f"{torch.cuda.get_device_name()}: times faster than copying to the host first")
    print(f"{'spec':34} {'values':>11} {'encode':>8} {'add':>8}")
    for n in options.values:
        for spec in SPECS:
            encoding, adding = compare(spec, n, options.repeats)
            print(f"{spec:34} {n:11,} {encoding:8.2f} {adding:8.2f}")


if __name__ == "__main__":
    main()
