"""How the fuzzer bends frames: bits, bytes, numbers and lengths, pieces of other frames, and a seal that fits in the end."""

from __future__ import annotations

import random
from collections.abc import Callable

MAX_FRAME = 4096  # bytes; larger seeds are left out, they are slow and add little
INTERESTING = (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 127, 128, 255)

Mutation = Callable[[random.Random, bytearray, list[bytes]], None]


def flip_bits(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(body))
        body[at] ^= 1 << rng.randrange(8)


def set_bytes(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 2, 4))):
        body[rng.randrange(len(body))] = rng.choice(INTERESTING) if rng.random() < 0.6 else rng.randrange(256)


def nudge_byte(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    at = rng.randrange(len(body))
    body[at] = (body[at] + rng.choice((-2, -1, 1, 2))) % 256


def delete(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    at = rng.randrange(len(body))
    del body[at : at + rng.choice((1, 1, 2, 4, 16))]


def insert(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    at = rng.randrange(len(body) + 1)
    body[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 16)))


def insert_varint(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    """Replace a byte by a number of any size: counts, lengths, dimensions."""
    from perbit.coding.bits import varint

    at = rng.randrange(len(body))
    body[at : at + 1] = varint(rng.getrandbits(rng.choice((7, 8, 14, 16, 17, 31, 32, 33, 47, 62))))


def repeat(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    begin = rng.randrange(len(body))
    piece = bytes(body[begin : begin + rng.choice((1, 2, 4, 8, 32))])
    body[begin:begin] = piece * rng.choice((1, 1, 2, 10))


def splice(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    """The beginning of this frame and the end of another."""
    other = corpus[rng.randrange(len(corpus))]
    body[rng.randrange(len(body)) :] = other[rng.randrange(len(other)) :]


def transplant(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    """A piece of another frame in place of as many bytes of this one."""
    other = corpus[rng.randrange(len(corpus))]
    begin, length = rng.randrange(len(other)), rng.choice((2, 4, 8, 20))
    at = rng.randrange(len(body))
    body[at : at + length] = other[begin : begin + length]


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits, flip_bits, set_bytes, set_bytes, nudge_byte, nudge_byte, delete, insert, insert_varint, repeat, splice, transplant,
)  # fmt: skip


def mutate(rng: random.Random, corpus: list[bytes]) -> bytes:
    """A new frame from an old one. Bodies begin with magic and version; nineteen of twenty are sealed."""
    from attacks.build import sealed

    body = bytearray(
        corpus[int(len(corpus) * rng.random() ** 3)]
    )  # the valid ones come first and are chosen more often
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        if body:
            rng.choice(MUTATIONS)(rng, body, corpus)
    if rng.random() < 0.05:
        return bytes(body[:MAX_FRAME])
    body[:5] = b"pbit\x01"
    return sealed(bytes(body[:MAX_FRAME]))


def seeds() -> list[bytes]:
    """Bodies (frames without checksum) to start from: the golden frames, the attacks."""
    from attacks import all_attacks
    from golden import make

    frames = [case.frame_path.read_bytes() for case in make.cases()]
    frames += [attack.frame for attack in all_attacks()]
    return [frame[:-4] for frame in frames if 10 < len(frame) <= MAX_FRAME]
