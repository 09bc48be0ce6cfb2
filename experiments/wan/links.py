"""Rate-limited links on one machine: network namespaces joined by a bridge, a token bucket at both ends of every cable.

    with Links(clients=2, mbit=25) as links:
        subprocess.Popen(links.command(0, [sys.executable, "client.py", "--server", links.server_address]))
        subprocess.Popen(links.server_command([sys.executable, "server.py"]))

Every client has an `eth0` that carries `mbit` megabits a second each way; the server's is as fast as the machine. Nothing leaves the
namespaces, and nothing in them reaches the outside. They are removed when the block ends, by an exception or a SIGTERM too;
what a killed process left behind goes when the next one starts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

PREFIX = "perbit"
NETWORK = "10.77.0"
QUEUE = "50ms"  # how long a packet may wait in a full bucket before it is dropped


class LinksUnavailableError(RuntimeError):
    """This machine does not let us make network namespaces; the message says why."""


def unavailable() -> str | None:
    """Why links cannot be made here, or None if they can."""
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{' and '.join(missing)} not found; install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root; run as root or with sudo"
    try:
        with Links(clients=1, mbit=10, name="trial"):
            return None
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


def require() -> None:
    """Raise LinksUnavailableError where links cannot be made."""
    if reason := unavailable():
        raise LinksUnavailableError(f"no rate-limited links here: {reason}")


def run(*argv: str) -> str:
    """The output of a command that must succeed."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


class Links:
    """`clients` namespaces and one for a server, on one bridge."""

    def __init__(self, clients: int, mbit: float, name: str = "") -> None:
        self.clients, self.mbit = clients, mbit
        self._stem = f"{PREFIX}-{os.getpid()}-{name}"
        self._cleanup = ExitStack()

    # --- what runs where ---------------------------------------------------------------------------------------------

    def namespace(self, client: int) -> str:
        return f"{self._stem}{client}"

    @property
    def _server(self) -> str:
        return f"{self._stem}server"

    @property
    def _bridge(self) -> str:
        return f"{self._stem}bridge"

    def command(self, client: int, argv: Sequence[str]) -> list[str]:
        """A command line that runs in the namespace of a client."""
        return ["ip", "netns", "exec", self.namespace(client), *argv]

    def server_command(self, argv: Sequence[str]) -> list[str]:
        """A command line that runs in the namespace of the server."""
        return ["ip", "netns", "exec", self._server, *argv]

    def address(self, client: int) -> str:
        return f"{NETWORK}.{client + 2}"

    @property
    def server_address(self) -> str:
        return f"{NETWORK}.1"

    def sent_bytes(self, client: int) -> int:
        """Bytes a client has put on its link so far, headers and acknowledgements included."""
        return self._counted(client, "tx")

    def received_bytes(self, client: int) -> int:
        return self._counted(client, "rx")

    def _counted(self, client: int, way: str) -> int:
        shown: list[dict[str, Any]] = json.loads(
            run("ip", "-n", self.namespace(client), "-j", "-s", "link", "show", "eth0")
        )
        return int(shown[0]["stats64"][way]["bytes"])

    def set(self, client: int, way: str) -> None:
        """ "down" pulls a client's cable out, "up" plugs it in again; connections last if it was not long."""
        run("ip", "-n", self._bridge, "link", "set", f"client{client}", way)

    # --- making and removing -----------------------------------------------------------------------------------------

    def __enter__(self) -> Links:
        remove_leftovers()
        with ExitStack() as stack:  # removes what was made if the rest cannot be made
            stack.enter_context(_terminated_by_exception())
            self._add_namespace(self._bridge, stack)
            run("ip", "-n", self._bridge, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self._bridge, "link", "set", "bridge", "up")
            self._connect(self._server, "server", self.server_address, stack)
            for client in range(self.clients):
                name, port = self.namespace(client), f"client{client}"
                self._connect(name, port, self.address(client), stack)
                self._limit(name, "eth0")
                self._limit(self._bridge, port)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._cleanup.close()

    def _add_namespace(self, name: str, stack: ExitStack) -> None:
        run("ip", "netns", "add", name)
        stack.callback(_remove, name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def _connect(self, namespace: str, port: str, address: str, stack: ExitStack) -> None:
        """A namespace with an address, and a cable from its eth0 to a port of the bridge."""
        self._add_namespace(namespace, stack)
        run("ip", "link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", port, "netns", self._bridge)  # fmt: skip
        run("ip", "-n", self._bridge, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", namespace, "link", "set", "eth0", "up")

    def _limit(self, namespace: str, device: str) -> None:
        """A token bucket for what leaves `device`. It must hold what passes between two ticks of the clock: 2 ms are plenty."""
        burst = max(16_000, round(self.mbit * 1e6 / 8 * 0.002))
        rate = f"{round(self.mbit * 1000)}kbit"
        run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", str(burst), "latency", QUEUE)  # fmt: skip


def _remove(namespace: str) -> None:
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def remove_leftovers() -> None:
    """Remove the namespaces of processes that are gone."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        parts = name.split("-")
        if parts[0] == PREFIX and len(parts) == 3 and not Path(f"/proc/{parts[1]}").exists():
            _remove(name)


@contextmanager
def _terminated_by_exception() -> Iterator[None]:
    """Within the block, SIGTERM raises SystemExit, so that clean-up runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
