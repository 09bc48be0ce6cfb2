"""Session frames that are cut, bent or lie about their lengths, with a good checksum: DecodeError at both ends, nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest

import perbit
from perbit.kernels import K
from perbit.session import ClientSession, ServerSession, protocol_of

ENORMOUS = b"\xff\xff\xff\xff\xff\xff\xff\x7f"


def sealed(body: bytes) -> bytes:
    return body + K.crc32c(body).to_bytes(4, "little")


def harmed(frame: bytes, rng: random.Random) -> bytes:
    at, body = rng.randrange(5, len(frame) - 4), frame[:-4]
    bent = body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :]
    return rng.choice([frame[:at], sealed(body[:at]), bent + frame[-4:], sealed(body[:at] + ENORMOUS + body[at + 1 :])])


@pytest.mark.parametrize("preset", [None, "fedavg", "diana", "mcm", "double_squeeze"])
def test_harmed_frames_end_in_decode_error(preset: str | None) -> None:
    model = {"w": np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32), "n": np.array(3)}
    rng = random.Random(0)
    for _ in range(60):
        server, client = ServerSession(protocol_of(preset), 0), ClientSession(seed=0)
        full = server.send("a", model)
        got = client.receive(full)
        update = client.reply({"w": got["w"] + 1, "n": got["n"] + 1})
        with pytest.raises(perbit.DecodeError):
            server.receive("a", harmed(update, rng))
        with pytest.raises(perbit.DecodeError):
            ClientSession().receive(harmed(full, rng))
