"""The four filters. NVFlare builds each from JSON of its own, so what they share is kept in the context of the run."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants

from perbit.engines.nvflare.models import added, are_torch, check_plain, check_steps, for_users, plain_bytes
from perbit.engines.nvflare.settings import as_json, folder_of, key_from, protocol_from
from perbit.engines.nvflare.sides import ClientSide, ServerSide
from perbit.errors import BudgetError, DecodeError, EncodeError, PerbitError
from perbit.plan import PlanLike
from perbit.plan.plan import Rules
from perbit.printing import LONGEST, printable
from perbit.protocols.protocol import Protocol
from perbit.session import ResyncNeeded, ServerSession, Traffic
from perbit.session.server import Absent

FRAME, IS_TORCH = "perbit", "perbit_torch"  # what a DXO's data holds instead of a model
TRAFFIC = "perbit_traffic"  # where the meta of a result tells what was sent so far
RESYNC = "perbit.resync"  # the topic of the message with which a client asks for everything
_LIMITS = ("population", "max_clients", "absent", "memory", "max_norm", "max_resyncs")
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
    """Codes the model of a task for each client. The protocol and the codecs of both directions are chosen here, for everybody.

    All arguments can be written as JSON, as in the configuration of a job; where Python passes objects, these are written down.

    Args:
        protocol: the name of a preset, or a Protocol; None: "federated".
        up, down: the codec of each direction: a spec, which codes large tensors and leaves small ones raw; a dict with the
            arguments of `Plan.of` or of `Budget.of`; a Plan or a Budget. None: the preset's own.
        rules: exceptions in both directions, unless one goes raw: which tensors get which spec; the first match wins.
        small: the spec of small and one-dimensional tensors, in both directions; "same": that of the large ones.
            None: they go as they are, unless the spec is good for them too (`rd`).
        options: the preset's other parameters, by name.
        first: the codec of full models ("fp16" halves them), for presets that have this parameter.
        population: how many clients there are, absent ones included; None: those that were heard of.
        max_clients: of more clients, those unheard of for longest are forgotten, and get a full model when they come back.
        absent: "predicted": a plain mean of the results counts absent clients as their memories predict (DIANA and its heirs);
            "ignored": every result is the client's own model.
        seed: fixes every random choice; None draws one.
        folder: for what the server must not lose, in a folder for each job: a server that was killed and runs the job again goes on from
            there. "run": in the folder of the run.
        memory: how much the session may hold ("2 GB").
        max_norm: leave out results whose norm is more than so many times the median of the latest ones.
        max_resyncs: how many full models a client may bring about of one version of the model.
        key_env: the environment variable with a secret that the clients have too, in hex; a job's configuration is no place for it.
    """

    kinds = (DataKind.WEIGHTS,)

    def __init__(
        self,
        protocol: Protocol | str | None = None,
        up: PlanLike | dict[str, Any] | None = None,
        down: PlanLike | dict[str, Any] | None = None,
        rules: Rules | None = None,
        small: str | None = None,
        options: dict[str, Any] | None = None,
        first: str | None = None,
        population: int | None = None,
        max_clients: int | None = None,
        absent: Absent = "predicted",
        seed: int | None = None,
        folder: str | None = None,
        memory: str | int | None = None,
        max_norm: float | None = None,
        max_resyncs: int = 3,
        key_env: str | None = None,
    ) -> None:
        super().__init__()
        # NVFlare reads the arguments of a filter off the attributes of the same names, and writes them as JSON
        self.protocol, self.up, self.down, self.rules = (as_json(x) for x in (protocol, up, down, rules))
        self.small, self.options, self.first = as_json(small), as_json(options), first
        self.population, self.max_clients, self.absent, self.seed = population, max_clients, absent, seed
        self.folder, self.memory, self.max_norm, self.max_resyncs = folder, memory, max_norm, max_resyncs
        self.key_env = key_env
        self._session()  # what cannot be read is refused here, where the job is written
        self.traffic = Traffic()

    def _session(self, fl_ctx: Any = None) -> ServerSession:
        """Without a context nothing is opened yet."""
        options = {**(self.options or {}), **({} if self.first is None else {"first": self.first})}
        protocol = protocol_from(self.protocol, self.up, self.down, self.rules, self.small, options)
        limits: dict[str, Any] = {name: getattr(self, name) for name in _LIMITS}
        if fl_ctx is not None:
            limits |= {"folder": folder_of(self.folder, fl_ctx), "key": key_from(self.key_env)}
        return ServerSession(protocol, self.seed, **limits)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Start the session with the run, and say at its end what it took."""
        if event_type == EventType.START_RUN:
            self._start(fl_ctx)
        elif event_type == EventType.CLIENT_DISCONNECTED:
            _server(fl_ctx).give_up(str(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME)))
        elif event_type == EventType.END_RUN:
            self.log_info(fl_ctx, f"perbit traffic: {_server(fl_ctx).summary()}")
            _server(fl_ctx).session.close(is_over=True)

    def _start(self, fl_ctx: Any) -> None:
        server: ServerSide | None = fl_ctx.get_prop(_SERVER)
        if server is not None:
            self.log_warning(fl_ctx, "this job has several ServerOutput filters; the first one chooses for all tasks")
            self.traffic = server.traffic
            return
        fl_ctx.set_prop(_SERVER, ServerSide(self._session(fl_ctx), self.traffic), private=True, sticky=True)
        fl_ctx.get_engine().register_aux_message_handler(RESYNC, self._resync)

    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        server = _server(fl_ctx)
        try:
            frame = server.send(_peer(fl_ctx), dxo.data)
        except (EncodeError, BudgetError) as error:
            server.count_plain(down_bytes=plain_bytes(dxo.data))
            self.log_warning(fl_ctx, printable(f"the model goes to {_peer(fl_ctx)} as it is: {error}", LONGEST))
            return None
        return _with_data(dxo, {FRAME: frame, IS_TORCH: are_torch(dxo.data)})

    def _resync(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        try:
            return Shareable({FRAME: _server(fl_ctx).resync(_peer(fl_ctx), request.get(FRAME, b""))})
        except PerbitError as error:
            self.log_warning(fl_ctx, printable(f"client {_peer(fl_ctx)} gets no full model: {error}", LONGEST))
            return make_reply(ReturnCode.BAD_REQUEST_DATA)


class ClientInput(_Filter):
    """Makes the model of the frame. The client's state is kept in the run's folder, so that a restarted client goes on; at the
    end of the run it is removed.

    Args:
        resync_timeout: seconds to wait for a full frame, where this client cannot use the one it got.
        key_env: the environment variable with the server's secret, if it has one, in hex.
    """

    kinds = (DataKind.WEIGHTS,)

    def __init__(self, resync_timeout: float = 300.0, key_env: str | None = None) -> None:
        super().__init__()
        self.resync_timeout, self.key_env = resync_timeout, key_env

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Find the state of an earlier process, if there was one; remove it when the run is over."""
        client: ClientSide | None = fl_ctx.get_prop(_CLIENT)
        if event_type == EventType.START_RUN and client is None:
            folder = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id()))
            fl_ctx.set_prop(_CLIENT, ClientSide(folder / "perbit", key_from(self.key_env)), private=True, sticky=True)
        elif event_type == EventType.END_RUN and client is not None:
            client.end()
            fl_ctx.set_prop(_CLIENT, None, private=True, sticky=True)

    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        client: ClientSide = fl_ctx.get_prop(_CLIENT)
        client.received = None
        if FRAME not in dxo.data:
            return None
        # to train, a client starts from where it would be had it sent everything
        unsent = 0.0 if fl_ctx.get_prop(FLContextKey.TASK_NAME) == AppConstants.TASK_VALIDATION else 1.0
        try:
            client.received = client.session.receive(dxo.data[FRAME], unsent)
        except ResyncNeeded as needed:
            client.received = client.session.receive(self._full_frame(needed, fl_ctx), unsent)
        return _with_data(dxo, for_users(client.received, dxo.data.get(IS_TORCH, False)))

    def _full_frame(self, needed: ResyncNeeded, fl_ctx: Any) -> bytes:
        """Ask at once. Without an answer this task fails, which the workflow sees, and nothing has happened here."""
        self.log_warning(fl_ctx, printable(f"resync: {needed}", LONGEST))
        request = Shareable({FRAME: needed.answer})
        replies = fl_ctx.get_engine().send_aux_request([], RESYNC, request, self.resync_timeout, fl_ctx)
        for reply in replies.values():
            if FRAME in reply:
                return bytes(reply[FRAME])
        raise needed


class ClientOutput(_Filter):
    """Codes the result against the model received: weights or their difference, of all tensors or of some; other results
    acknowledge the frame."""

    kinds = (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.METRICS)

    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        client: ClientSide | None = fl_ctx.get_prop(_CLIENT)
        if client is None or client.received is None:
            return None
        received, client.received = client.received, None
        if dxo.data_kind == DataKind.METRICS:
            return _with_data(dxo, {**dxo.data, FRAME: client.session.reply()})
        is_diff = dxo.data_kind == DataKind.WEIGHT_DIFF
        try:
            answer = client.session.reply(added(dxo.data, received) if is_diff else dxo.data)
        except (EncodeError, BudgetError) as error:  # this client stays where it was, and the server with it
            self.log_warning(fl_ctx, printable(f"the result goes to the server as it is: {error}", LONGEST))
            return None
        return _with_data(dxo, {FRAME: answer, IS_TORCH: are_torch(dxo.data)})


class ServerInput(_Filter):
    """Makes the client's result of its frame. One of no use becomes an empty result, which workflows skip; an error would
    end the whole job where all clients are needed."""

    kinds = ClientOutput.kinds

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """A task that failed has no result: what was sent for it is waited for no longer."""
        if shareable.get_return_code() != ReturnCode.OK:
            _server(fl_ctx).give_up(_peer(fl_ctx))
        return super().process(shareable, fl_ctx)

    def _process(self, dxo: Any, fl_ctx: Any) -> Any:
        data, server, client = dict(dxo.data), _server(fl_ctx), _peer(fl_ctx)
        answer, is_torch = data.pop(FRAME, None), data.pop(IS_TORCH, False)
        try:
            check_steps(dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND))
            if answer is None:
                server.give_up(client)
                server.count_plain(up_bytes=plain_bytes(data))
                check_plain(data)
                return None
        except DecodeError as error:
            server.drop(client, error)
            return _with_data(dxo, {})
        tensors = server.receive(client, answer, dxo.data_kind == DataKind.WEIGHT_DIFF)
        if tensors is None:  # of what stands beside an acknowledgement, only metrics are meant
            result = _with_data(dxo, data if dxo.data_kind == DataKind.METRICS else {})
        else:
            result = _with_data(dxo, for_users(tensors, is_torch))
        result.set_meta_prop(TRAFFIC, server.summary())
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
