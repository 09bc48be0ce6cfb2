"""Encodes with every spec while another thread scribbles over the arrays: `python tests/changing_arrays.py ROUNDS [SPEC...]`.

A process of its own: what must not happen here is a crash. What comes out of such a race is nobody's promise: a frame of something, or an
error of perbit's own.
"""

from __future__ import annotations

import sys
import threading
import warnings

import numpy as np

import perbit
from perbit import kernels, testing

SIZE = (1 << 16) + 77


def scribble(x: np.ndarray, stop: threading.Event) -> None:
    """Turn all of the array from few large values into many and back, with what no codec takes in between."""
    rng = np.random.default_rng(1)
    sparse = (rng.normal(size=x.size) * (rng.random(x.size) < 0.001)).astype(np.float32)
    contents = [sparse, rng.normal(size=x.size).astype(np.float32), np.zeros_like(x), np.full_like(x, 3e38)] * 4
    contents += [np.full_like(x, np.nan), np.where(sparse > 0, np.inf, sparse).astype(np.float32)]
    while not stop.is_set():
        for content in contents:
            x[:] = content


def race(specs: list[str], rounds: int) -> dict[str, int]:
    """How often each ended in a frame, and in an error."""
    x, stop = np.zeros(SIZE, np.float32), threading.Event()
    thread = threading.Thread(target=scribble, args=(x, stop))
    thread.start()
    outcomes = {"frames": 0, "errors": 0}
    try:
        for turn in range(rounds * len(specs)):
            view = x[: 1000 + turn % 5000] if turn % 3 == 2 else x
            try:
                perbit.encode(view, specs[turn % len(specs)], seed=turn)
                outcomes["frames"] += 1
            except perbit.PerbitError:
                outcomes["errors"] += 1
    finally:
        stop.set()
        thread.join()
    return outcomes


def main(rounds: int, specs: list[str]) -> None:
    warnings.simplefilter("ignore")  # numpy's remarks on NaN
    for name in kernels.available():
        if name != "numpy":
            with kernels.using(name):
                print(name, race(specs or testing.specs(), rounds), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
