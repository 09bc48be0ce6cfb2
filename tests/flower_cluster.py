"""A SuperLink and SuperNodes as real processes on loopback, with TLS and node authentication, behind proxies that count."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from perbit.session import ClientSession

BIN = Path(sys.executable).parent
EXAMPLE = Path(__file__).parents[1] / "examples" / "flower"


def environment(folder: Path) -> dict[str, str]:
    """Nothing is sent to anybody, everything is written below the folder, and every process uses one thread."""
    (folder / "flwr").mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PERBIT_STATE": str(folder / "state"),
        "PERBIT_TEST_GATE": str(folder / "gate"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(true: Callable[[], bool], what: str, seconds: float = 240) -> None:
    """Machines may be slow; that alone fails no test."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds} s in vain: {what}"
        time.sleep(0.1)


class CountingProxy:
    """Forwards TCP connections and counts the bytes of each direction as they pass."""

    def __init__(self, target: int) -> None:
        self.port, self.target = free_port(), target
        self.up_bytes = self.down_bytes = 0
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", self.port))
        started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pump(reader, far_writer, "up_bytes"), self._pump(far_reader, writer, "down_bytes"))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counter: str) -> None:
        try:
            while data := await reader.read(1 << 16):
                setattr(self, counter, getattr(self, counter) + len(data))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@dataclass
class Cluster:
    """Processes are started in groups of their own and ended by these, whatever happens."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    proxies: list[CountingProxy] = field(default_factory=list)

    def __enter__(self) -> Cluster:
        self.env = environment(self.folder)
        for name in ("gate", "state"):
            (self.folder / name).mkdir()
        self.make_certificates("")
        trust = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.folder}/ca.crt"\n'
        (self.folder / "flwr" / "config.toml").write_text(f'[superlink]\ndefault = "loop"\n\n[superlink.loop]\n{trust}')
        command = ["flower-superlink", *self._tls(), "--enable-supernode-auth", "--host", "127.0.0.1"]
        self.start("superlink", *command, "--port", str(self.port), "--disable-runtime-dependency-installation")
        wait_until(self._listens, "the SuperLink listens")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            self.kill(process)
        for proxy in self.proxies:
            proxy.close()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.env, start_new_session=True, cwd=self.folder)  # fmt: skip
        self.processes.append(process)
        return process

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9, for the process and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def node(self, name: str, partition: int, ca: str = "ca.crt", register: bool = True) -> subprocess.Popen[bytes]:
        """Start a SuperNode with a key of its own behind a proxy of its own."""
        if not (self.folder / name).exists():
            self.run("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", name)
            if register:
                self.run("flwr", "supernode", "register", f"{name}.pub", "loop")
        self.proxies.append(CountingProxy(self.port))
        options = ["--superlink", f"127.0.0.1:{self.proxies[-1].port}", "--port", str(free_port())]
        options += ["--root-certificates", ca, "--auth-supernode-private-key", name]
        partition_of = f"partition-id={partition} num-partitions=2"
        return self.start(name, "flower-supernode", *self._tls(), *options, "--node-config", partition_of)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def node_id(self, name: str) -> int:
        """Once a SuperNode is connected its log says which number it has; after a restart it says so again."""
        return int(re.findall(r"SuperNode ID: (\d+)", self.log(name))[-1])

    def wait_for_node(self, name: str) -> None:
        self.wait_for_log(name, "SuperNode ID: ")

    def wait_for_log(self, name: str, text: str) -> None:
        """Logs arrive later than what they speak of."""
        wait_until(lambda: text in self.log(name), f"{name}.log says {text!r}")

    def restart(self, name: str, partition: int) -> None:
        """As a service manager would: again and again. For a minute the SuperLink takes the killed node for alive."""
        before, until = self.log(name).count("SuperNode ID: "), time.monotonic() + 400
        while True:
            process = self.node(name, partition)
            while self.log(name).count("SuperNode ID: ") == before and process.poll() is None:
                time.sleep(0.1)
            if process.poll() is None:
                return
            assert time.monotonic() < until, f"{name} cannot connect: {self.log(name)[-2000:]}"
            self.kill(process)
            time.sleep(10)

    def gated_app(self) -> Path:
        """A copy of the example whose server waits for the test."""
        app = self.folder / "app"
        shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(__file__).parent / "flower_gated_app.py", app / "digits_app" / "gated_app.py")
        project = app / "pyproject.toml"
        project.write_text(project.read_text().replace("digits_app.server_app:app", "digits_app.gated_app:app"))
        return app

    def go(self, server_round: int, *orders: str) -> None:
        """Open the gate of a round."""
        new = self.folder / "gate" / "new"
        new.write_text("\n".join(orders))
        new.rename(self.folder / "gate" / f"go-{server_round}")

    def wait_for_gate(self, server_round: int, seconds: float = 240) -> dict[str, str]:
        """The digests of what the server thinks its nodes hold."""
        ready = self.folder / "gate" / f"ready-{server_round}"
        wait_until(ready.exists, f"round {server_round} is reached", seconds)
        digests: dict[str, str] = json.loads(ready.read_text())
        return digests

    def held(self) -> dict[str, str]:
        """The digests of what the nodes hold, by their numbers; their folders are named RUN-NODE."""
        folders = (self.folder / "state").iterdir()
        return {path.name.split("-")[1]: (ClientSession(path).digest or b"").hex() for path in folders}

    def wait_for_the_end(self) -> None:
        wait_until(lambda: not list((self.folder / "state").iterdir()), "the nodes have deleted their state")

    def make_certificates(self, prefix: str) -> None:
        """An authority and a certificate for 127.0.0.1."""
        ca, key, server = (f"{prefix}{name}" for name in ("ca.crt", "ca.key", "server"))
        new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        self.run(*new, "-x509", "-days", "2", "-keyout", key, "-out", ca)
        self.run(*new, "-keyout", f"{server}.key", "-out", f"{server}.csr")
        (self.folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        sign = ["openssl", "x509", "-req", "-days", "2", "-CA", ca, "-CAkey", key, "-CAcreateserial"]
        self.run(*sign, "-in", f"{server}.csr", "-extfile", "names", "-out", f"{server}.pem")

    def _tls(self) -> list[str]:
        return ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
