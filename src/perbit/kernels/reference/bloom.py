"""Bloom filters over positions in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import U32, U64, Buffer
from perbit.kernels.reference.checks import MAX_LENGTH, pieces, require

SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_MASK = (1 << 32) - 1


def murmur3(x: U32, seed: int) -> U64:
    """MurmurHash3 (x86, 32 bits) of each position as four bytes.

    >>> [hex(h) for h in murmur3(np.array([0, 0x87654321], np.uint32), 0).tolist()]
    ['0x2362f9de', '0xf55b516b']
    """
    key = _times(_rotate(_times(x.astype(np.uint64), 0xCC9E2D51), 15), 0x1B873593)
    h = _times(_rotate(key ^ np.uint64(seed & _MASK), 13), 5) + np.uint64(0xE6546B64) & np.uint64(_MASK)
    h ^= np.uint64(4)
    h = _times(h ^ h >> np.uint64(16), 0x85EBCA6B)
    h = _times(h ^ h >> np.uint64(13), 0xC2B2AE35)
    return h ^ h >> np.uint64(16)


def _rotate(x: U64, by: int) -> U64:
    return (x << np.uint64(by) | x >> np.uint64(32 - by)) & np.uint64(_MASK)


def _times(x: U64, factor: int) -> U64:
    return x * np.uint64(factor) & np.uint64(_MASK)


def _bits(x: U32, n_bytes: int, hashes: int, seed: int, blocked: bool) -> U64:
    """The bits of each position: an array of shape (positions, hashes)."""
    if not blocked:
        bits = np.uint64(8 * n_bytes)
        columns = [murmur3(x, seed + i) * bits >> np.uint64(32) for i in range(hashes)]
    else:
        blocks = np.uint64(n_bytes // (4 * hashes))
        first = (murmur3(x, seed) * blocks >> np.uint64(32)) * np.uint64(hashes)
        pattern = murmur3(x, seed + 1)
        columns = [
            (first + np.uint64(i)) * np.uint64(32) + (_times(pattern, SALTS[i]) >> np.uint64(27)) for i in range(hashes)
        ]
    return np.stack(columns, axis=1)


def _require_shape(n_bytes: int, hashes: int, blocked: bool) -> None:
    require(1 <= hashes <= (8 if blocked else 32), "a filter has 1 to 32 hashes, a blocked one 1 to 8")
    require(1 <= n_bytes < 1 << 29, "a filter has 1 to 2^29 - 1 bytes")
    require(not blocked or n_bytes % (4 * hashes) == 0, "a blocked filter holds whole blocks")


def bloom_build(positions: U32, n_bytes: int, hashes: int, seed: int, blocked: bool) -> bytes:
    _require_shape(n_bytes, hashes, blocked)
    filter_ = np.zeros(n_bytes, np.uint8)
    for piece in pieces(len(positions)):
        bits = _bits(positions[piece], n_bytes, hashes, seed, blocked).reshape(-1)
        np.bitwise_or.at(filter_, bits >> np.uint64(3), (1 << (bits & np.uint64(7))).astype(np.uint8))
    return filter_.tobytes()


def bloom_query(data: Buffer, n: int, hashes: int, seed: int, blocked: bool, limit: int) -> U32:
    require(n <= MAX_LENGTH, "positions are 32-bit: n is too large")
    raw = np.frombuffer(data, np.uint8)
    _require_shape(len(raw), hashes, blocked)
    found, left = [np.empty(0, np.uint32)], limit
    for piece in pieces(n):
        x = np.arange(piece.start, piece.stop, dtype=np.uint32)
        bits = _bits(x, len(raw), hashes, seed, blocked)
        accepted = x[np.all(raw[bits >> np.uint64(3)] >> (bits & np.uint64(7)).astype(np.uint8) & 1, axis=1)]
        left -= len(accepted)
        require(left >= 0, "the filter accepts more positions than there are")
        found.append(accepted)
    return np.concatenate(found)


def bloom_resolve(accepted: U32, n_bytes: int, hashes: int, seed: int, blocked: bool, count: int, skip: bool) -> U32:
    _require_shape(n_bytes, hashes, blocked)
    require(count <= len(accepted), "the filter accepts fewer positions than there are")
    order = accepted if skip else accepted[_draw_order(accepted, seed - 1)]
    bits = [set(own) for own in _bits(order, n_bytes, hashes, seed, blocked).tolist()] if len(order) else []
    members: dict[int, list[int]] = {}
    for rank, own in enumerate(bits):
        for bit in own:
            members.setdefault(bit, []).append(rank)
    if skip:
        for bit, ranks in members.items():
            members[bit] = [ranks[i] for i in _draw_order(order[ranks], seed - 1 - bit)]
    sets = {bit: members[bit][::-1] for bit in sorted(members, key=lambda bit: (len(members[bit]), bit))}
    taken: set[int] = set()
    explained: set[int] = set()
    while len(taken) < count:
        for bit, ranks in sets.items():
            passes = skip and bit in explained
            explained.discard(bit)
            while ranks and ranks[-1] in taken:
                ranks.pop()
            if ranks and len(taken) < count and not passes:
                taken.add(ranks[-1])
                explained |= bits[ranks[-1]] - {bit}
    return np.sort(order[sorted(taken)]).astype(np.uint32)


def _draw_order(x: U32, seed: int) -> NDArray[np.intp]:
    return np.argsort(murmur3(x, seed) << np.uint64(32) | x.astype(np.uint64))
