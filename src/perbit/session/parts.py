"""Clients that answer with some of the tensors only: which ones, kept once for all who do the same."""

from __future__ import annotations

from collections.abc import Iterable

from perbit.channels.layout import Layout
from perbit.errors import DecodeError
from perbit.session.model import answered

Names = tuple[str, ...]
MOST = 16  # different sets of tensors at a time: each has a layout, and codecs that were looked up for it
_PER_TENSOR = 1024  # bytes for a tensor's name, shape and codec in a set


class Parts:
    """The sets of tensors that clients answer with."""

    def __init__(self) -> None:
        self._layouts: dict[Names, Layout] = {}

    def shared(self, names: Names | None, in_use: Iterable[Names | None]) -> Names | None:
        """The same names, as they are known already; DecodeError if too many sets are in use."""
        if names is None or names in self._layouts:
            return names
        if len(self._layouts) >= MOST:
            used = set(in_use)
            self._layouts = {known: layout for known, layout in self._layouts.items() if known in used}
        if len(self._layouts) >= MOST:
            raise DecodeError(
                f"clients answer with {MOST} different sets of tensors already, which are the most there may be"
            )
        return names

    def layout(self, of: Layout, names: Names | None) -> Layout:
        """The layout of an answer with these tensors."""
        if names is None:
            return answered(of, None)
        if names not in self._layouts:
            self._layouts[names] = answered(of, names)
        return self._layouts[names]

    @property
    def n_bytes(self) -> int:
        return _PER_TENSOR * sum(map(len, self._layouts))
