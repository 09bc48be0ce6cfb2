"""A server as a process of its own that a test can kill at any moment: a loop of rounds with clients behind a pipe.

Every frame goes to the parent and every answer comes from there: the parent has the clients. What the server knows is in its folder.
"""

from __future__ import annotations

import pickle
import struct
import sys
from typing import Any

import numpy as np

from perbit.session import ServerSession
from session_exchange import noisy, small


def say(message: Any) -> None:
    data = pickle.dumps(message)
    sys.stdout.buffer.write(struct.pack("<I", len(data)) + data)
    sys.stdout.buffer.flush()


def hear() -> Any:
    (length,) = struct.unpack("<I", sys.stdin.buffer.read(4))
    return pickle.loads(sys.stdin.buffer.read(length))


def main(preset: str, folder: str) -> None:
    population = 4 if preset == "rand_mcm_averaged" else None
    server = ServerSession(small(preset), 0, folder=folder, population=population)
    rng, number = np.random.default_rng(), 0
    while True:
        server.publish(noisy(int(rng.integers(1 << 30)), number))
        number += 1
        for _ in range(2):  # training, then evaluation of the same model
            for client in rng.permutation(4)[:3]:
                say((int(client), server.send(int(client))))
                answer = hear()
                if answer is not None:
                    server.receive(int(client), answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
