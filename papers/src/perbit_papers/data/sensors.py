"""HAPT: what people do, from the accelerometer and gyroscope of the phone on their belt, by subject."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from perbit.sim.data import Array, Dataset, Info, Split
from perbit_papers.data import store

WINDOW, STRIDE = 128, 64  # 2.56 s at 50 Hz, half overlapping, as the set's authors cut it
TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)  # theirs too: people never seen in training
N_ACTIVITIES = 12


def hapt(root: Path | str | None = None) -> Dataset:
    """Windows (6, 128) of raw signals within one activity; labels 0 to 11, `group` is the subject."""
    arrays = store.read("hapt", root)
    starts = _window_starts(arrays["label"], arrays["experiment"])
    signal = (arrays["sig"] * arrays["scale"]).astype(np.float32)
    x = np.stack([signal[start : start + WINDOW].T for start in starts])
    y, group = arrays["label"][starts].astype(np.int64) - 1, arrays["user"][starts].astype(np.int64)
    is_test = np.isin(group, TEST_SUBJECTS)
    mean, std = (f(x[~is_test], axis=(0, 2), keepdims=True) for f in (np.mean, np.std))
    x = ((x - mean) / std).astype(np.float32)
    train, test = (Split(x[part], y[part], group[part]) for part in (~is_test, is_test))
    return Dataset(Info("hapt", "series", (x.shape[1], WINDOW), N_ACTIVITIES), train, test)


def _window_starts(label: Array, experiment: Array) -> Array:
    """Every window that lies within one run of one labelled activity of one experiment."""
    change = (np.diff(label.astype(int)) != 0) | (np.diff(experiment.astype(int)) != 0)
    edges = np.concatenate([[0], np.flatnonzero(change) + 1, [len(label)]])
    runs = [(a, b) for a, b in pairwise(edges) if label[a] > 0]
    return np.concatenate([np.arange(a, b - WINDOW + 1, STRIDE) for a, b in runs]).astype(np.int64)
