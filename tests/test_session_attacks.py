"""Session frames that are cut, bent, forged or lie about their lengths, with a good checksum: DecodeError at both ends, nothing else."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perbit
from perbit.channels import Direct
from perbit.channels.packing import to_text
from perbit.frame import wire
from perbit.kernels import K
from perbit.protocols.downlinks import PerClient, Start
from perbit.session import ClientSession, ResyncNeeded, ServerSession, protocol_of
from perbit.session.envelope import DIGEST_BYTES, Kind, WayDown, enclose, opened
from perbit.session.terms import Terms
from session_exchange import exchange, kind, session, small

ENORMOUS = b"\xff\xff\xff\xff\xff\xff\xff\x7f"
PRESETS = ["federated", "fedavg", "diana", "mcm", "double_squeeze", "rand_mcm", "rand_mcm_averaged"]


def sealed(body: bytes) -> bytes:
    return body + K.crc32c(body).to_bytes(4, "little")


def harmed(frame: bytes, rng: random.Random) -> bytes:
    at, body = rng.randrange(5, len(frame) - 4), frame[:-4]
    bent = body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :]
    return rng.choice([frame[:at], sealed(body[:at]), bent + frame[-4:], sealed(body[:at] + ENORMOUS + body[at + 1 :])])


def tensors(seed: int = 0) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).normal(size=(40, 50)).astype(np.float32), "n": np.array(3)}


@pytest.mark.parametrize("preset", PRESETS)
def test_harmed_frames_end_in_decode_error(preset: str) -> None:
    rng = random.Random(0)
    for _ in range(40):
        server, client = session(small(preset)), ClientSession()
        full = server.send("a", tensors())
        got = client.receive(full)
        update = client.reply({"w": got["w"] + 1, "n": got["n"] + 1})
        with pytest.raises(perbit.DecodeError):
            server.receive("a", harmed(update, rng))
        with pytest.raises(ResyncNeeded):
            ClientSession().receive(harmed(full, rng))
        exchange(server, "a", client, tensors(1), None)
        delta = server.send("a", tensors(2))
        assert kind(delta) == "DELTA"
        with pytest.raises(ResyncNeeded):
            client.receive(harmed(delta, rng))


@pytest.mark.parametrize("preset", PRESETS)
def test_resealed_frames_are_refused_or_harmless(preset: str) -> None:
    """One bit anywhere, and a checksum that fits: no other error, and what is accepted is a model of the right tensors."""
    rng = random.Random(1)
    server, client = session(small(preset)), ClientSession()
    exchange(server, "a", client, tensors(), None)
    late = server.send("b", tensors(1))
    delta = server.send("a", tensors(1))
    frames = [(late, None), (delta, client.state)]
    for _ in range(300):
        frame, state = rng.choice(frames)
        at = rng.randrange(5, len(frame) - 4)
        bent = sealed(frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 : -4])
        other = ClientSession()
        other.state = state
        try:
            got = other.receive(bent)
        except ResyncNeeded:
            continue
        if state is not None:
            assert {name: x.shape for name, x in got.items()} == {"w": (40, 50), "n": ()}
        other.reply(got)


# --- terms of a stranger --------------------------------------------------------------------------------------------------


def full_frame(terms: bytes, **parts: Any) -> bytes:
    """A full frame with these terms and a good first model."""
    model = {"w": np.ones((40, 50), np.float32)}
    content = {"version": 0, "start": Start.HERE, "frames": [], "exact": b"", "model": wire.write_raw(model), **parts}
    first = content.pop("model")
    return enclose(Kind.FULL, 1, bytes(DIGEST_BYTES), terms, *WayDown(**content).parts(), first)


def good_terms(**changed: Any) -> Terms:
    server = ServerSession(protocol_of("mcm"), 0)
    server.publish({"w": np.ones((40, 50), np.float32)})
    return replace(server._terms, **changed)


def test_a_full_frame_of_ones_own_making_works() -> None:
    assert ClientSession().receive(full_frame(good_terms().to_bytes()))["w"].sum() == 2000


SCHEMAS: list[Any] = [
    (("", "float32", (40, 50)),),
    (("w", "float32", (40, 50)), ("", "float32", (3,))),
    (("w", "float32", (40, 50)), ("w", "float32", (40, 50))),
    (("w", "banana", (40, 50)),),
    (("w", "int64", (40, 50)),),
    (("w", None, (40, 50)),),
    (("w", "float32", (40.0, 50)),),
    (("w", "float32", (-40, -50)),),
    (("w", "float32", (1 << 40, 1 << 40)),),
    (("w", "float32", (1 << 62, 1 << 62, 0)),),
    (("w", "float32", (1,) * 99),),
    (("w", "float32", 2000),),
    (("w", "float32"),),
    ((7, "float32", (40, 50)),),
    (("\ud800", "float32", (40, 50)),),
    ("w",),
    "w",
    7,
    None,
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=repr)
def test_hostile_schemas_end_in_decode_error(schema: Any) -> None:
    for parts in ({}, {"model": b""}, {"model": b"", "frames": [b"x"], "start": 1}):
        with pytest.raises(ResyncNeeded) as needed:
            ClientSession().receive(full_frame(good_terms(schema=schema).to_bytes(), **parts))
        assert opened(needed.value.answer).kind == Kind.RESYNC


@pytest.mark.parametrize(
    "changed",
    [
        {"exact": ("n",)},
        {"exact": (7,)},
        {"exact": ((),)},
        {"exact": "w"},
        {"session": "text"},
        {"incarnation": None},
        {"seed": 1.5},
        {"number": "c"},
        {"uplink": None},
        {"uplink": PerClient(Direct("raw"))},
        {"uplink": Direct("raw", numbered=False)},
        {"downlink": Direct("raw")},
        {"downlink": 7},
        {"downlink": PerClient("raw")},  # type: ignore[arg-type]
    ],
    ids=lambda changed: "/".join(changed),
)
def test_hostile_terms_end_in_decode_error(changed: dict[str, Any]) -> None:
    with pytest.raises(ResyncNeeded):
        ClientSession().receive(full_frame(good_terms(**changed).to_bytes()))


@pytest.mark.parametrize("depth", [20, 3000])
def test_channels_wound_around_channels_end_in_decode_error(depth: int) -> None:
    text = json.loads(good_terms().to_bytes())
    name, fields = text["objects"].pop()
    for _ in range(depth):
        text["objects"].append(["ErrorFeedback", {"inner": fields["uplink"]}])
        fields["uplink"] = {"object": len(text["objects"]) - 1}
    text["objects"].append([name, fields])
    text["root"] = {"object": len(text["objects"]) - 1}
    with pytest.raises(ResyncNeeded):
        ClientSession().receive(full_frame(json.dumps(text).encode()))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"{}",
        b"[" * 99_999,
        b'{"objects":[],"root":1}',
        b'{"objects":1,"root":1}',
        b'{"objects":[["Popen",{"args":"ls"}]],"root":{"object":0}}',
        b'{"objects":[["Direct",{"plan":{"codec":"raw"}}]],"root":{"object":0}}',
        b'{"objects":[["Direct",{"plan":{"codec":"' + b"topk(" * 500 + b'"}}]],"root":{"object":0}}',
        b'{"objects":[["Shared",{"channel":1,"groups":1000000000000}]],"root":{"object":0}}',
        b'{"objects":[],"root":{"bytes":"zz"}}',
        b'{"objects":[],"root":{"array":"json"}}',
        b'{"objects":[],"root":{"tuple":7}}',
        b'{"objects":[],"root":{"dict":[[{"dict":[]},1]]}}',
        b'{"objects":[],"root":{"__class__":7}}',
        b'{"objects":[],"root":{"tuple":[],"dict":[]}}',
        b'{"objects":[],"root":' + b"9" * 5000 + b"}",
    ],
)
def test_strange_descriptions_are_refused(text: bytes) -> None:
    with pytest.raises(perbit.DecodeError):
        Terms.from_bytes(text)
    with pytest.raises(ResyncNeeded):
        ClientSession().receive(full_frame(text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_part_of_the_terms_may_be_anything(data: st.DataObject) -> None:
    """Any value in place of any other one in the text: a model of the tensors that the terms name, or DecodeError."""
    preset = data.draw(st.sampled_from(PRESETS))
    server = session(small(preset))
    server.publish({"w": np.ones((40, 50), np.float32)})
    text = json.loads(to_text(server._terms))
    place = text
    while isinstance(place, dict | list) and place:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    client = ClientSession()
    try:
        got = client.receive(full_frame(json.dumps(text).encode()))
    except ResyncNeeded:
        return
    assert [x.shape for x in got.values()] == [(40, 50)]
    client.reply(got)


def test_a_full_frame_without_a_model_is_refused() -> None:
    for preset in PRESETS:
        server = session(small(preset))
        server.publish({"w": np.ones((40, 50), np.float32)})
        for start in (0, 1, 2, 3):
            with pytest.raises(ResyncNeeded):
                ClientSession().receive(full_frame(server._terms.to_bytes(), model=b"", start=start))


def test_a_first_model_of_integers_is_refused() -> None:
    for dtype in (np.int64, np.bool_):
        model = wire.write_raw({"w": np.ones((40, 50), dtype)})
        with pytest.raises(ResyncNeeded):
            ClientSession().receive(full_frame(good_terms().to_bytes(), model=model))


# --- answers of a stranger ----------------------------------------------------------------------------------------------


def asked(preset: str = "mcm", raw: bool = False) -> tuple[ServerSession, ClientSession]:
    """A server that waits for the answer of client "a", and has heard of client "b"."""
    protocol = protocol_of(preset, up="raw") if raw else small(preset)
    server, client = session(protocol), ClientSession()
    exchange(server, "b", ClientSession(), tensors(), None)
    client.receive(server.send("a", tensors()))
    return server, client


def forged(server: ServerSession, frame: bytes, exact: bytes = b"", names: bytes = b"") -> bytes:
    pending = server._pending["a"]
    return enclose(Kind.UPDATE, pending.sequence, pending.digest, frame, exact, names)


def update(server: ServerSession, values: Any, spec: str = "raw") -> bytes:
    """A frame for the first message of the uplink, with any values."""
    digest = server.protocol.uplink.digest(server._average.uplinks.get("a"))
    return perbit.dumps({"w": values}, spec, sequence=0, digest=digest)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "values", [np.full((40, 50), 1e300), np.full((40, 50), 3.4e38, np.float32)], ids=["f64", "f32"]
)
def test_values_that_would_end_a_run_are_refused(preset: str, values: Any) -> None:
    """What is beyond float32, or would be once it is summed up, is no update; everybody else goes on."""
    server, _ = asked(preset, raw=True)
    with pytest.raises(perbit.DecodeError, match=r"not finite|float32 was agreed"):
        server.receive("a", forged(server, update(server, values)))
    client = ClientSession()
    exchange(server, "b", client, tensors(1), lambda x: x)
    server.step(1.0)
    assert np.isfinite(server.tensors["w"]).all()


@pytest.mark.parametrize("preset", ["diana", "ef21", "mcm", "predicted_feedback"])
def test_a_memory_cannot_be_driven_beyond_all_bounds(preset: str) -> None:
    server, client = ServerSession(protocol_of(preset, up="raw"), 0), ClientSession()
    exchange(server, "a", client, tensors(), None)
    for exponent in range(20, 39):
        client.receive(server.send("a", tensors(exponent)))
        answer = client.reply(update={"w": np.full((40, 50), 10.0**exponent, np.float32)})
        try:
            got = server.receive("a", answer)
        except perbit.DecodeError:
            break
        assert got is not None
        assert np.isfinite(got["w"]).all()
    assert exponent < 38


@pytest.mark.parametrize(
    "exact",
    [
        {"n": np.array(np.nan)},
        {"n": np.array(np.inf)},
        {"n": np.array([3])},
        {"m": np.array(3)},
        {"": np.array(3)},
        {"w": np.ones((40, 50), np.float32)},
    ],
    ids=repr,
)
def test_exact_tensors_must_be_those_of_the_model(exact: dict[str, Any]) -> None:
    server, _ = asked()
    try:
        data = wire.write_raw(exact)
    except perbit.EncodeError:  # perbit itself does not write what is not finite
        data = wire.write_raw({name: np.zeros_like(x) for name, x in exact.items()})
        at = data.index(bytes(8), len(data) - 13)
        data = sealed(data[:at] + next(iter(exact.values())).tobytes() + data[at + 8 : -4])
    with pytest.raises(perbit.DecodeError):
        server.receive("a", forged(server, update(server, np.zeros((40, 50), np.float32)), data))


def test_an_exact_tensor_of_a_dtype_that_cannot_be_averaged_is_refused() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    server, _ = asked()
    data = wire.write_raw({"n": np.array(3, ml_dtypes.bfloat16)})
    with pytest.raises(perbit.DecodeError, match="bfloat16"):
        server.receive("a", forged(server, update(server, np.zeros((40, 50), np.float32)), data))


@pytest.mark.parametrize(
    "names", [b"[", b"{}", b'["x"]', b'["w", 7]', b'[["w"]]', b"[]", b"7", b'"w"', b"\xff", b'[{"w":1}]']
)
def test_names_must_be_those_of_the_model(names: bytes) -> None:
    """And a new client that told nonsense can start again: nothing of it is left."""
    server, client = asked("diana")
    with pytest.raises(perbit.DecodeError):
        server.receive("a", forged(server, update(server, np.zeros((40, 50), np.float32)), names=names))
    exchange(server, "a", client, tensors(), lambda x: x)
    assert server.n_resyncs == 0


def test_a_new_client_whose_first_partial_answer_fails_starts_again() -> None:
    server, client = asked("diana")
    with pytest.raises(perbit.DecodeError):
        server.receive("a", forged(server, b"no frame", names=b'["n"]'))
    exchange(server, "a", client, tensors(), lambda x: x)
    assert server.n_resyncs == 0
