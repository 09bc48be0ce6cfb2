"""Names come from others: in logs and tables they command nothing and fill no screen, and no session minds how long they are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.cli import main
from perbit.printing import LONGEST, logger
from perbit.session import protocol_of
from session_exchange import model

EVIL = "\x1b]0;evil\x07\x1b[2J\nname"
LONG = "n" * 200_000
"""A client's name as long as a message."""


def session_of(name: str, folder: Path | None = None, **options: Any) -> perbit.session.ServerSession:
    return perbit.session.ServerSession(protocol_of("federated"), 1, folder=folder, **options)


@pytest.mark.parametrize("name", [EVIL, LONG], ids=["escapes", "long"])
def test_the_logs_of_sessions_are_printable(name: str, caplog: pytest.LogCaptureFixture) -> None:
    server, client = session_of(name), perbit.session.ClientSession()
    with caplog.at_level(logging.INFO):
        client.receive(server.send(name, model()))
        server.resync(name)
        with pytest.raises(perbit.DecodeError) as refused:
            server.receive(name, perbit.session.envelope.ask_for_resync(b"", name))
    assert caplog.messages
    assert all(message.isprintable() and len(message) < 2 * LONGEST for message in caplog.messages)
    assert len(str(refused.value)) < 3 * len(name) + 1000


def test_a_traceback_in_a_log_is_printable(caplog: pytest.LogCaptureFixture) -> None:
    log = logger("perbit.session")
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("client %s", EVIL)
    assert not any(sign in caplog.text for sign in "\x1b\x07")
    assert "ValueError" in caplog.text


@pytest.mark.parametrize("client", [EVIL, LONG, "", (1, EVIL), np.int64(7), np.str_("site")], ids=repr)
def test_a_session_bears_any_name_of_a_client(client: Any, tmp_path: Path) -> None:
    """And knows it after a restart."""
    node = perbit.session.ClientSession()
    server = session_of("", tmp_path)
    for value in range(3):
        received = node.receive(server.send(client, model(value)))
        server.receive(client, node.reply(received))
        server.close()
        server = session_of("", tmp_path)
        assert server.digest(client) == node.digest
    assert server.n_resyncs == 0


@pytest.mark.parametrize("tensor", [EVIL, LONG[:1024], ""], ids=["escapes", "long", "none"])
def test_tables_bear_any_name_of_a_tensor(tensor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pbit"
    path.write_bytes(perbit.dumps({tensor: np.ones((40, 60), np.float32)}, "topk(0.1)"))
    assert main(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert all(line.isprintable() and len(line) < 500 for line in lines)
