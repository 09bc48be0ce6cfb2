import heapq
import numpy as np
from perbit.bits import Reader, varint


def normalise(c, bits):
    M = 1 << bits
    c = c.astype(np.float64)
    f = np.where(c > 0, np.maximum(1, np.floor(c / c.sum() * M)), 0).astype(np.int64)
    d = M - f.sum()
    f[f.argmax()] += d
    return f.astype(np.uint32)


def cost_bits(c, f, bits):
    m = c > 0
    return float((c[m] * (bits - np.log2(f[m]))).sum())


def write_freqs(f, bits):
    return bytes([bits]) + b"".join(varint(int(v)) for v in f)


def read_freqs(data, A):
    r = Reader(data)
    b = r.byte("b")
    f = np.array([r.varint("f") for _ in range(A)], np.uint32)
    return f, b, r.position


def best_table(c):
    f = normalise(c, 14)
    return f, 14, write_freqs(f, 14)


def huffman_lengths(c, limit):
    k = np.flatnonzero(c)
    L = np.zeros(len(c), np.uint8)
    w = c.astype(np.int64).copy()
    while True:
        h = [(int(w[i]), j, [i]) for j, i in enumerate(k)]
        heapq.heapify(h)
        L[:] = 0
        j = len(h)
        while len(h) > 1:
            a = heapq.heappop(h)
            b = heapq.heappop(h)
            for i in a[2] + b[2]:
                L[i] += 1
            heapq.heappush(h, (a[0] + b[0], j, a[2] + b[2]))
            j += 1
        if L.max() <= limit:
            return L
        w = np.where(w > 0, w // 2 + 1, 0)


def write_lengths(L):
    return bytes(L)


def read_lengths(d, A):
    return np.frombuffer(d[:A], np.uint8).copy(), A


def rans_lanes(n):
    return 1 if n < 1024 else 4 if n < 8192 else 8 if n < 65536 else 32


def entropy_bits(c):
    p = c[c > 0].astype(float)
    return float((p * (np.log2(p.sum()) - np.log2(p))).sum())


def least_table_bits(c):
    return 16


def huffman_limit(a):
    return 11 if a <= 256 else 15
