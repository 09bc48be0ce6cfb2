"""A client's process on a line that loses, repeats, reorders and damages, and one that means harm."""

from __future__ import annotations

import logging
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from attacks import all_attacks
from perbit.session import ClientSession, ResyncNeeded
from perbit.session.envelope import DIGEST_BYTES, Kind, enclose
from soaking.counters import Counters
from soaking.server import SHAPES
from soaking.wire import ANSWER, DIGEST, GET, GoneError, ask

MISCHIEF = 0.04  # how likely each kind of it is, for each message
STEP = np.float32(0.1)  # towards what a client's data say
BOMBS = [attack.frame for attack in all_attacks()]  # made once, by the process that all others are forked from


def target(who: str) -> dict[str, Any]:
    """What this client's data say the model should be."""
    rng = np.random.default_rng(int(who[1:]))
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


class Line:
    """What a bad network makes of messages."""

    def __init__(self, rng: random.Random, counters: Counters) -> None:
        self.rng, self.counters = rng, counters
        self.old: list[bytes] = []
        self.held: bytes | None = None

    def _strikes(self, what: str) -> bool:
        struck = self.rng.random() < MISCHIEF
        self.counters.add(what, struck)
        return struck

    def carried(self, message: bytes) -> list[bytes]:
        """What arrives in place of a message, in this order."""
        arrived = [message]
        if self._strikes("dropped"):
            arrived = []
        elif self._strikes("damaged"):
            bent = bytearray(message)
            for _ in range(self.rng.choice((1, 1, 2, 16))):
                bent[self.rng.randrange(len(bent))] ^= 1 << self.rng.randrange(8)
            arrived = [bytes(bent[: self.rng.randrange(len(bent) + 1)] if self.rng.random() < 0.3 else bent)]
        elif self.old and self._strikes("replayed"):
            arrived = [self.rng.choice(self.old)]
        elif self._strikes("doubled"):
            arrived = [message, message]
        elif self._strikes("delayed"):
            arrived, self.held = [] if self.held is None else [self.held], message
        elif self.held is not None:
            arrived, self.held = [message, self.held], None  # the later one first
        self.old = [*self.old[-9:], message]
        return arrived


class Client:
    def __init__(self, who: str, folder: Path) -> None:
        self.who, self.address = who, folder / "line"
        self.counters = Counters(folder / f"{who}.counters")
        self.counters.add("started")
        self.rng, self.target = random.Random(), target(who)
        self.down, self.up = Line(self.rng, self.counters), Line(self.rng, self.counters)
        logger = logging.getLogger("perbit.session")
        logger.addHandler(_Unusable(self.counters))
        logger.propagate = False
        self.session = ClientSession(folder / f"state of {who}")

    def exchange(self, calm: bool) -> bool:
        """Ask, train, answer; whether the server took it."""
        frame = ask(self.address, GET, self.who)
        taken = False
        for arrived in [frame] if calm else self.down.carried(frame):
            answer = self._answer(arrived)
            for message in [answer] if calm else self.up.carried(answer):
                taken = self._tell(message) or taken
        self.counters.add("exchanges", taken)
        return taken

    def _answer(self, frame: bytes) -> bytes:
        try:
            tensors = self.session.receive(frame)
        except ResyncNeeded as needed:
            return needed.answer
        moved = {name: tensors[name] + STEP * (self.target[name] - tensors[name]) for name in SHAPES}
        return self.session.reply({**tensors, **moved})

    def _tell(self, message: bytes) -> bool:
        said = ask(self.address, ANSWER, self.who, message)
        if len(said) > len(b"taken"):  # a full model
            said = ask(self.address, ANSWER, self.who, self._answer(said))
        return said == b"taken"

    def compare(self) -> bool:
        """Whether both sides hold the same now."""
        theirs = ask(self.address, DIGEST, self.who)
        if theirs == (self.session.digest or b""):
            self.counters.add("compared")
            return True
        self.counters.add("differed")
        return False


class _Unusable(logging.Handler):
    """Counts states that a client found on disk and could not use: after kill -9 there must be none."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self.counters = counters

    def emit(self, record: logging.LogRecord) -> None:
        self.counters.add("unusable_states", "cannot be used" in record.getMessage())


def run(who: str, folder: Path) -> None:
    """Until calm has come and both sides hold the same."""
    client, calm = Client(who, folder), folder / "calm"
    try:
        while True:
            try:
                is_calm = calm.exists()
                if client.exchange(is_calm) and is_calm and client.compare():
                    return
            except GoneError:
                time.sleep(0.05)
    except BaseException as error:
        client.counters.add("unexpected")
        with (folder / "unexpected.log").open("a") as log:
            log.write(f"{who} {os.getpid()}: {error!r}\n")
        raise


def run_hostile(who: str, folder: Path) -> None:
    """Garbage, bombs, forged envelopes and storms of requests for a full model, until calm has come."""
    logging.disable(logging.CRITICAL)
    counters, rng = Counters(folder / f"{who}.counters"), random.Random()
    while not (folder / "calm").exists():
        body = rng.choice((rng.randbytes(rng.randrange(200)), rng.choice(BOMBS), b""))
        kind, digest = rng.choice(list(Kind)), rng.randbytes(DIGEST_BYTES)
        try:
            sequence = rng.choice((0, 1, 1 << 40))
            if rng.random() < 0.5:
                frame = ask(folder / "line", GET, who)
                sequence = int.from_bytes(frame[6:7], "little") if rng.random() < 0.5 else sequence
            message = (
                body
                if rng.random() < 0.3
                else enclose(kind, sequence, digest, *(body for _ in range(rng.randrange(4))))
            )
            ask(folder / "line", ANSWER, who, message)
            counters.add("hostile")
        except GoneError:
            pass
        time.sleep(0.05)
