"""Shakespeare by speaker: the next character, or the next word."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from perbit.sim.data import Array, DataError, Dataset, Info, Split
from perbit_papers.data import store

Root = Path | str | None
LENGTH = 80  # characters a sample, as in LEAF
WORDS = 20  # words a sample, as in FedML's Stack Overflow task
VOCABULARY = 10_000
PAD, BEGIN, END, UNKNOWN = range(4)  # before the words: 10 004 symbols in all
TEST_SHARE = 0.1


def shakespeare(root: Root = None) -> Dataset:
    """Tiny Shakespeare: 1.1 MB, 65 characters, the speeches of 299 speakers."""
    arrays = store.read("tinyshakespeare", root)
    symbols, coded = np.unique(arrays["text"], return_inverse=True)
    speeches: dict[int, list[Array]] = {}
    for start, end, speaker in zip(*(arrays[f"utt_{key}"] for key in ("start", "end", "speaker")), strict=True):
        speeches.setdefault(int(speaker), []).append(coded[start:end])
    return _samples(
        "shakespeare", {who: np.concatenate(parts) for who, parts in speeches.items()}, len(symbols), LENGTH
    )


def shakespeare_roles(root: Root = None) -> Dataset:
    """Thirty-six plays: 3.9 MB, 970 roles."""
    arrays = store.read("shakespeare_roles", root)
    symbols, coded = np.unique(arrays["text"], return_inverse=True)
    return _samples("shakespeare-roles", _by_role(coded, arrays["offsets"]), len(symbols), LENGTH)


def shakespeare_words(root: Root = None) -> Dataset:
    """The same plays as words: the 10 000 commonest and four marks, the alphabet of the Stack Overflow task."""
    arrays = store.read("shakespeare_roles", root)
    spoken = {who: _split_words(text) for who, text in _by_role(arrays["text"], arrays["offsets"]).items()}
    counts = Counter(word for words in spoken.values() for word in words)
    common = sorted(counts, key=lambda word: (-counts[word], word))[:VOCABULARY]
    code = {word: UNKNOWN + 1 + i for i, word in enumerate(common)}
    coded = {who: np.array([code.get(word, UNKNOWN) for word in words], np.int64) for who, words in spoken.items()}
    return _samples("shakespeare-words", coded, UNKNOWN + 1 + VOCABULARY, WORDS)


def _by_role(text: Array, offsets: Array) -> dict[int, Array]:
    return {role: text[start:end] for role, (start, end) in enumerate(pairwise(offsets))}


def _split_words(text: Array) -> list[str]:
    return re.findall(r"[a-z']+|[.,;:!?]", text.tobytes().decode("latin-1").lower())


def _samples(name: str, texts: dict[int, Array], n_symbols: int, length: int) -> Dataset:
    """Cut each text into samples of `length` with the symbol that follows each as target; a text's last tenth is for the test.

    A text too short for one sample is left out, and one of a single sample trains only.
    """
    parts: dict[str, list[tuple[Array, int]]] = {"train": [], "test": []}
    for who, text in texts.items():
        n = (len(text) - 1) // length
        n_test = int(np.ceil(n * TEST_SHARE)) if n > 1 else 0
        if n:
            windows = text[np.arange(n)[:, None] * length + np.arange(length + 1)]
            parts["train"].append((windows[: n - n_test], who))
            parts["test"].append((windows[n - n_test :], who))
    if not parts["train"]:
        raise DataError(f"{name} holds no text of {length + 1} symbols by one speaker")
    return Dataset(Info(name, "text", (length,), n_symbols), _split(parts["train"]), _split(parts["test"]))


def _split(parts: list[tuple[Array, int]]) -> Split:
    windows = np.concatenate([windows for windows, _ in parts]).astype(np.int64)
    group = np.repeat([who for _, who in parts], [len(windows) for windows, _ in parts])
    return Split(windows[:, :-1], windows[:, 1:], group)
