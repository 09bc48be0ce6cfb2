"""A client's state in a folder of its own: the last two states by turns, and the last full model, which seldom changes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from perbit.channels import Layout, State
from perbit.channels.packing import restore, save
from perbit.errors import DecodeError
from perbit.files import FileError
from perbit.printing import logger
from perbit.protocols.downlinks import AveragedClient
from perbit.session.held import Held, Holding
from perbit.session.terms import TYPES, Terms

LOG = logger("perbit.session")
_TYPES = (Held, Terms, State, Layout, AveragedClient, *TYPES)
_SLOTS = ("state-0.npz", "state-1.npz")


class ClientFiles:
    """Written so that a crash at any moment leaves one whole state; private to the user, for they hold a model and its residuals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._slots: dict[str, Held] = {}
        self._anchors: dict[str, str] = {}  # which file each of them needs beside its own
        self._anchor: Any = None  # the newest, and its file
        self._anchor_name = ""

    def save(self, holding: Holding) -> None:
        """Replace the older of the two states."""
        terms, now, base = holding.terms, holding.now, holding.base
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise FileError(f"cannot write to {self.folder}: {error.strerror}") from error
        anchor, rest = terms.downlink.apart(now.down)
        if anchor is not None and anchor is not self._anchor:
            self._anchor_name = f"anchor-{terms.downlink.channel.digest(anchor).hex()}.npz"
            save(self.folder / self._anchor_name, anchor, "anchor", private=True)
            self._anchor = anchor
        taken = next((name for name, held in self._slots.items() if base is not None and base.is_like(held)), _SLOTS[1])
        free = _SLOTS[taken == _SLOTS[0]]
        content = (terms, replace(now, down=rest), now.digest(terms), self._anchor_name)
        save(self.folder / free, content, "state", private=True)
        self._slots[free], self._anchors[free] = now, self._anchor_name
        if base is None:
            (self.folder / taken).unlink(missing_ok=True)
            self._slots.pop(taken, None)
            self._anchors.pop(taken, None)
        for path in self.folder.glob("anchor-*.npz"):
            if path.name not in self._anchors.values():
                path.unlink(missing_ok=True)

    def load(self) -> Holding | None:
        """What the files hold, or None if there is nothing of use; the server's full frame will replace it."""
        self._delete(leftovers_only=True)
        found = [state for name in _SLOTS if (state := self._read(name)) is not None]
        found.sort(key=lambda state: state[1].sequence)
        if not found:
            return None
        terms, now = found[-1]
        same = [held for other, held in found[:-1] if other.session == terms.session]
        return Holding(terms, same[0] if same else None, now)

    def remove(self) -> None:
        """The run is over."""
        self._delete()
        try:
            self.folder.rmdir()
        except OSError as error:
            LOG.info("%s stays: %s", self.folder, error.strerror)

    def _delete(self, leftovers_only: bool = False) -> None:
        """Delete the files, or only what a writer that was killed has left of them."""
        for name in (*_SLOTS, "anchor-*.npz"):
            own = () if leftovers_only else self.folder.glob(name)
            for path in (*own, *self.folder.glob(f".{name}.*")):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _read(self, name: str) -> tuple[Terms, Held] | None:
        try:
            if not (self.folder / name).exists():
                return None
            terms, held, digest, anchor_name = restore(self.folder / name, _TYPES, "state")
            held = replace(held, down=terms.downlink.together(self._read_anchor(anchor_name), held.down))
            if held.digest(terms) != digest:
                raise DecodeError("its parts do not belong together")
        except Exception as error:  # whatever a damaged file leads to, a full frame heals it
            LOG.warning("the state in %s cannot be used, a resync will replace it: %s", name, error)
            return None
        self._slots[name], self._anchors[name] = held, anchor_name
        return terms, held

    def _read_anchor(self, name: str) -> Any:
        if name and name != self._anchor_name and Path(name).name == name:
            self._anchor, self._anchor_name = restore(self.folder / name, _TYPES, "anchor"), name
        return self._anchor if name else None
