"""A protocol between one server and clients that come and go: versions, digests, state on disk, resync.

Engines (Flower, NVFlare, ...) carry bytes; this is what goes into them:

    frame = server.send(client, tensors)      the model, as its protocol sends it
    tensors = client.receive(frame)           what the client trains on
    answer = client.reply(trained)            its update (or, without an argument, only an acknowledgement)
    tensors = server.receive(client, answer)  the client's model as the server knows it: any strategy can average these

A server with an optimiser of its own calls `server.step(rate)` instead of averaging, then `server.send(client)`.

Both ends hold the same, and every frame says what it was made against. Where they differ (a restarted client or server, a lost
file, a damaged frame), `ResyncNeeded` is raised and a full frame heals it; nothing diverges in silence.
"""

from perbit.protocols.presets import federated, protocol_of
from perbit.session.bounds import TooLarge, TooManyResyncs
from perbit.session.client import ClientSession
from perbit.session.envelope import ResyncNeeded, StaleAnswer
from perbit.session.model import Model
from perbit.session.server import ServerSession
from perbit.session.traffic import Traffic

__all__ = [
    "ClientSession", "Model", "ResyncNeeded", "ServerSession", "StaleAnswer", "TooLarge", "TooManyResyncs", "Traffic",
    "federated", "protocol_of",
]  # fmt: skip
