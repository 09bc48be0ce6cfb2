"""A ClientApp for tests: the example's, whose node of partition 0 attacks the server with every answer.

It is copied into the example as digits_app/hostile_app.py. The environment variable PERBIT_TEST_HOSTILE says "attacks": one attack after the
other; or "silent": the node only fails, which is the run without it. One attack is to answer as another node: a simulation's transport
lets it, if it knows the number of the message. The node of partition 1 tells it, in the folder PERBIT_TEST_SHARED, and waits to be robbed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from digits_app import client_app
from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp

import perbit
from perbit.engines.flower import perbit_mod
from perbit.engines.flower.records import find_frame, framed, to_record, to_tensors, with_record
from perbit.frame import wire
from perbit.session.envelope import Kind, ask_for_resync, enclose, opened

MODE = os.environ.get("PERBIT_TEST_HOSTILE", "silent")
FACTORS = {0: 1e3, 1: -1e30, 2: 3e36}  # of what was trained
ACKNOWLEDGE, ONE_TENSOR, IDENTITY, WEIGHT, METRICS, N_ATTACKS = 9, 10, 11, 12, 13, 14
SHARED = Path(os.environ.get("PERBIT_TEST_SHARED", "."))
kept: dict[int, Any] = {}


def which(message: Message, context: Context) -> int | None:
    """The number of the attack, if this node attacks."""
    if context.node_config["partition-id"] != 0 or "config" not in message.content:
        return None
    return round_of(message) % N_ATTACKS


def round_of(message: Message) -> int:
    return int(message.content["config"]["server-round"])


def appears(path: Path) -> bool:
    """Whether a file is there, after a while at most."""
    until = time.monotonic() + 10
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return path.exists()


def be_robbed(message: Message, context: Context) -> None:
    """Tell the attacker what to answer to, and let it be the first."""
    is_train = "config" in message.content and "server-round" in message.content["config"]
    if context.node_config["partition-id"] != 1 or not is_train or round_of(message) % N_ATTACKS != IDENTITY:
        return
    number = round_of(message)
    (SHARED / "asked").write_text(f"{context.node_id} {message.metadata.message_id}")
    (SHARED / "asked").rename(SHARED / f"asked-{number}")
    if appears(SHARED / f"taken-{number}"):
        time.sleep(2)


def as_another(reply: Message, number: int) -> Message:
    """This node's answer, in the name of the other one."""
    if appears(SHARED / f"asked-{number}"):
        node, message_id = (SHARED / f"asked-{number}").read_text().split()
        reply.metadata.__dict__.update(_src_node_id=int(node), _reply_to_message_id=message_id)
        (SHARED / f"taken-{number}").touch()
    return reply


def huge_values(message: Message, context: Context, call_next: Any) -> Message:
    """Inside perbit: coded by the agreed codecs, with good digests."""
    attack, reply = which(message, context), call_next(message, context)
    if attack in FACTORS:
        trained = to_tensors(reply.content["arrays"])
        reply.content["arrays"] = to_record(
            {name: (x * FACTORS[attack]).astype(x.dtype) for name, x in trained.items()}
        )
    if attack == ONE_TENSOR:
        reply.content["arrays"] = to_record(dict(list(to_tensors(reply.content["arrays"]).items())[:1]))
    if attack == WEIGHT:
        reply.content["metrics"]["num-examples"] = float("nan")
    if attack == METRICS:
        reply.content["metrics"] = MetricRecord({"num-examples": 1e308, "evil": [1.0]})
    return reply


def strange_frames(message: Message, context: Context, call_next: Any) -> Message:
    """Outside perbit: what a client that knows the protocol can send instead of its answer."""
    attack = which(message, context)
    if attack is None:
        if MODE == "attacks":
            be_robbed(message, context)
        return call_next(message, context)
    if MODE == "silent":
        raise RuntimeError("this node is not there")
    reply = call_next(message, context)
    if attack == IDENTITY:
        return as_another(reply, round_of(message))
    found = find_frame(reply.content) if reply.has_content() else None
    if found is None:
        return reply
    reply.content = with_record(reply.content, found.record, framed(strange(attack, found.frame)))
    return reply


def strange(attack: int, frame: bytes) -> bytes:
    if attack in (*FACTORS, ONE_TENSOR, WEIGHT, METRICS):
        return frame
    answer = opened(frame)
    if attack == ACKNOWLEDGE:
        return enclose(Kind.ACK, answer.sequence, answer.digest)
    if attack == 3:
        return bytes(kept.setdefault(0, frame))  # a replay, once there was another one
    if attack == 4:
        return ask_for_resync(b"", "more")
    if attack == 5:
        return frame + bytes(50_000_000)
    if attack == 6 or answer.kind != Kind.UPDATE:
        return bytes(len(frame))
    update, exact, names = (bytes(answer.body.section(part)) for part in ("update", "exact", "names"))
    header = wire.read_header(update)
    dtype, spec = (np.float64, "raw") if attack == 7 else (np.float32, "skcompress")
    values = {entry.name: np.full(entry.shape, 1e30 if attack == 7 else 1e-3, dtype) for entry in header.entries}
    plan = perbit.Plan.of(spec, small=None)
    forged = perbit.dumps(values, plan, sequence=header.sequence, digest=header.digest)
    return enclose(Kind.UPDATE, answer.sequence, answer.digest, forged, exact, names)


app = ClientApp(
    mods=[strange_frames, perbit_mod(), huge_values] if MODE == "attacks" else [strange_frames, perbit_mod()]
)
app.train()(client_app.train)
app.evaluate()(client_app.evaluate)
