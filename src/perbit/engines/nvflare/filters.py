"""The four filters. NVFlare builds each from a text of its own, so that what they share is kept in the context of the run."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.shareable import Shareable

from perbit.engines.nvflare.models import added, are_torch, for_users, in_order, plain_bytes
from perbit.engines.nvflare.sides import ClientSide, ServerSide
from perbit.errors import EncodeError
from perbit.session import ClientSession, ResyncNeeded, ServerSession, Traffic, protocol_of

FRAME, IS_TORCH = "perbit", "perbit_torch"  # what a DXO's data holds instead of a model
TRAFFIC = "perbit_traffic"  # where the meta of a result tells what was sent so far
RESYNC = "perbit.resync"  # the topic of the message with which a client asks for everything
_SERVER, _CLIENT = "perbit.server", "perbit.client"  # the sides, in the context of the run


class _Filter(DXOFilter):  # type: ignore[misc]  # NVFlare has no types
    kinds: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__(list(self.kinds), list(self.kinds))

    def process_dxo(self, dxo: Any, shareable: Any, fl_ctx: Any) -> Any:
        """One model per message; a collection of several passes as it is."""
        if from_shareable(shareable).data_kind == DataKind.COLLECTION:
            return None
        return self._process(dxo, fl_ctx)

    @abstractmethod
    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        """What becomes of one model."""


class ServerOutput(_Filter):
    """Codes the model of a task for each client. The protocol (a preset) and the codecs are chosen here, as text."""

    kinds = (DataKind.WEIGHTS,)

    def __init__(self, protocol: str | None = None, up: str | None = None, down: str | None = None) -> None:
        super().__init__()
        self.protocol, self.up, self.down = protocol, up, down
        protocol_of(protocol, up, down)  # what cannot be read is refused here, where the job is written
        self.traffic = Traffic()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Start the session with the run, and say at its end what it took."""
        if event_type == EventType.START_RUN and fl_ctx.get_prop(_SERVER) is None:
            server = ServerSide(ServerSession(protocol_of(self.protocol, self.up, self.down)), self.traffic)
            fl_ctx.set_prop(_SERVER, server, private=True, sticky=True)
            fl_ctx.get_engine().register_aux_message_handler(RESYNC, self._resync)
        elif event_type == EventType.END_RUN:
            self.log_info(fl_ctx, f"perbit traffic: {self.traffic.summary()}")

    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        server = _server(fl_ctx)
        try:
            frame = server.send(_peer(fl_ctx), dxo.data)
        except EncodeError as error:
            server.count_plain(down_bytes=plain_bytes(dxo.data))
            self.log_warning(fl_ctx, f"the model goes to {_peer(fl_ctx)} as it is: {error}")
            return None
        return _with_data(dxo, {FRAME: frame, IS_TORCH: are_torch(dxo.data)})

    def _resync(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        return Shareable({FRAME: _server(fl_ctx).resync(_peer(fl_ctx), request[FRAME])})


class ClientInput(_Filter):
    """Makes the model of the frame. The state is kept in the run's folder, so that a restarted client goes on."""

    kinds = (DataKind.WEIGHTS,)

    def __init__(self, resync_timeout: float = 300.0) -> None:
        super().__init__()
        self.resync_timeout = resync_timeout  # seconds until a full frame has to be here

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Find the state of an earlier process, if there was one."""
        if event_type == EventType.START_RUN and fl_ctx.get_prop(_CLIENT) is None:
            folder = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()))
            client = ClientSide(ClientSession(folder / "perbit.npz"))
            fl_ctx.set_prop(_CLIENT, client, private=True, sticky=True)

    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        client: ClientSide = fl_ctx.get_prop(_CLIENT)
        client.received = None
        if FRAME not in dxo.data:
            return None
        try:
            client.received = client.session.receive(dxo.data[FRAME])
        except ResyncNeeded as needed:
            client.received = client.session.receive(self._full_frame(needed, fl_ctx))
        return _with_data(dxo, for_users(client.received, dxo.data.get(IS_TORCH, False)))

    def _full_frame(self, needed: ResyncNeeded, fl_ctx: Any) -> bytes:
        """Ask at once. Without an answer this task fails, which the workflow sees, and nothing has happened here."""
        self.log_warning(fl_ctx, f"resync: {needed}")
        request = Shareable({FRAME: needed.answer})
        replies = fl_ctx.get_engine().send_aux_request([], RESYNC, request, self.resync_timeout, fl_ctx)
        for reply in replies.values():
            if FRAME in reply:
                return bytes(reply[FRAME])
        raise needed


class ClientOutput(_Filter):
    """Codes the result against the model received: weights, or their difference; other results acknowledge the frame."""

    kinds = (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.METRICS)

    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        client: ClientSide | None = fl_ctx.get_prop(_CLIENT)
        if client is None or client.received is None:
            return None
        received, client.received = client.received, None
        if dxo.data_kind == DataKind.METRICS:
            return _with_data(dxo, {**dxo.data, FRAME: client.session.reply()})
        trained = added if dxo.data_kind == DataKind.WEIGHT_DIFF else in_order
        try:
            answer = client.session.reply(trained(dxo.data, received))
        except EncodeError as error:  # this client stays where it was, and the server with it
            self.log_warning(fl_ctx, f"the result goes to the server as it is: {error}")
            return None
        return _with_data(dxo, {FRAME: answer, IS_TORCH: are_torch(dxo.data)})


class ServerInput(_Filter):
    """Makes the client's result of its frame. One of no use becomes an empty result, which workflows skip; an error would
    end the whole job where all clients are needed."""

    kinds = ClientOutput.kinds

    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        data, server = dict(dxo.data), _server(fl_ctx)
        answer, is_torch = data.pop(FRAME, None), data.pop(IS_TORCH, False)
        if answer is None:
            server.count_plain(up_bytes=plain_bytes(data))
            return None
        tensors = server.receive(_peer(fl_ctx), answer, dxo.data_kind == DataKind.WEIGHT_DIFF)
        result = _with_data(dxo, data if tensors is None else for_users(tensors, is_torch))
        result.set_meta_prop(TRAFFIC, server.traffic.summary())
        return result


def _server(fl_ctx: Any) -> ServerSide:
    server: ServerSide | None = fl_ctx.get_prop(_SERVER)
    if server is None:
        raise RuntimeError("perbit has not started on this server; add ServerOutput to its filters")
    return server


def _peer(fl_ctx: Any) -> str:
    """Which client this is about."""
    return str(fl_ctx.get_peer_context().get_identity_name())


def _with_data(dxo: Any, data: dict[str, Any]) -> Any:
    """A copy with other data: the original belongs to all clients. NVFlare adds the history itself."""
    return DXO(dxo.data_kind, data, {key: x for key, x in dxo.meta.items() if key != MetaKey.FILTER_HISTORY})
