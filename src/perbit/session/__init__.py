"""A protocol between one server and clients that come and go: sequence numbers, digests, state on disk, resync.

Engines (Flower, NVFlare, ...) carry bytes; this is what goes into them:

    frame = server.send(client, tensors)      the model, as its protocol sends it
    tensors = client.receive(frame)           what the client trains on
    answer = client.reply(trained)            its update (or, without an argument, only an acknowledgement)
    tensors = server.receive(client, answer)  the client's model as the server knows it: any strategy can average these

Both ends hold the same `End`, and every frame says which one it was made against. Where they differ (a restarted client or
server, a lost file, a repeated or damaged frame), `ResyncNeeded` is raised and a full frame heals it; nothing diverges in
silence, and a result that is dropped has not happened.
"""

from perbit.session.client import ClientSession
from perbit.session.envelope import ResyncNeeded
from perbit.session.model import Model
from perbit.session.server import ServerSession
from perbit.session.traffic import Traffic
from perbit.session.wiring import federated, protocol_of

__all__ = ["ClientSession", "Model", "ResyncNeeded", "ServerSession", "Traffic", "federated", "protocol_of"]
