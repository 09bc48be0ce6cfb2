"""Rate-limited links: they carry data at the configured rate, and nothing of them is left behind."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

import wan

links_module = wan.links
REASON = links_module.unavailable()


def needs_links(test: Callable[..., None]) -> Callable[..., None]:
    """Where links cannot be made (no root, no iproute2), the test is that every attempt is refused with this reason."""
    if REASON is None:
        return test

    @functools.wraps(test)
    def refused(**_: object) -> None:
        with pytest.raises(links_module.LinksUnavailableError, match=re.escape(REASON)):
            links_module.require()

    return refused


N_BYTES = 300_000
SERVER = "import socket; s = socket.create_server(('0.0.0.0', 5000)); c = s.accept()[0]; n = 0\nwhile b := c.recv(65536): n += len(b)\nprint(n)"
CLIENT = """
import socket, sys, time
for attempt in range(200):
    try:
        s = socket.create_connection((sys.argv[1], 5000))
        break
    except ConnectionRefusedError:  # the server is still starting
        time.sleep(0.05)
s.sendall(bytes(int(sys.argv[2])))
"""


def namespaces() -> str:
    listed: str = links_module.run("ip", "netns", "list")
    return listed


def configured_rate(namespace: str, device: str) -> int:
    shown = links_module.run("tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device)
    return int(json.loads(shown)[0]["options"]["rate"]) * 8


@needs_links
def test_data_flows_between_namespaces_that_are_limited_both_ways() -> None:
    with links_module.Links(clients=2, mbit=100, name="t") as links:
        before = links.sent_bytes(1)
        server = subprocess.Popen(links.command(0, [sys.executable, "-c", SERVER]), stdout=subprocess.PIPE, text=True)
        client = links.command(1, [sys.executable, "-c", CLIENT, links.address(0), str(N_BYTES)])
        subprocess.run(client, check=True, timeout=60)
        assert server.communicate(timeout=60)[0].strip() == str(N_BYTES)
        assert N_BYTES < links.sent_bytes(1) - before < 1.2 * N_BYTES
        assert links.received_bytes(0) > N_BYTES
        for client_number in range(2):
            assert configured_rate(links.namespace(client_number), "eth0") == 100_000_000
            assert configured_rate(links._bridge, f"client{client_number}") == 100_000_000
        made = links.namespace(0)
        assert made in namespaces()
    assert made not in namespaces()


@needs_links
def test_the_server_is_reached_and_an_exception_removes_everything() -> None:
    with pytest.raises(ZeroDivisionError), links_module.Links(clients=1, mbit=5, name="x") as links:  # noqa: PT012
        made = links.namespace(0)
        server = subprocess.Popen(links.server_command([sys.executable, "-c", SERVER]), stdout=subprocess.PIPE, text=True)  # fmt: skip
        client = links.command(0, [sys.executable, "-c", CLIENT, links.server_address, "1000"])
        subprocess.run(client, check=True, timeout=60)
        assert server.communicate(timeout=60)[0].strip() == "1000"
        raise ZeroDivisionError
    assert made not in namespaces()


HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from links import Links
with Links(clients=1, mbit=5) as links:
    print(links.namespace(0), flush=True)
    time.sleep(600)
"""


@needs_links
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_terminated_process_leaves_nothing_and_a_killed_one_is_cleaned_up_after(how: signal.Signals) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(wan.FOLDER)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    made = holder.stdout.readline().strip()
    assert made in namespaces()
    os.kill(holder.pid, how)
    holder.communicate(timeout=60)
    if how is signal.SIGKILL:
        assert made in namespaces()
        links_module.remove_leftovers()
    assert made not in namespaces()


def test_without_tools_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert links_module.unavailable() == "ip and tc not found; install iproute2"
    with pytest.raises(links_module.LinksUnavailableError, match="no rate-limited links here: ip and tc not found"):
        links_module.require()


def test_without_root_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(links_module.os, "geteuid", lambda: 1000)
    assert "need root" in links_module.unavailable()
