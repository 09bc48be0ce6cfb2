"""Flower over real thin links: twenty million parameters, two SuperNodes behind 25 (100, 5) Mbit/s, float32 against perbit.

    python experiments/wan/flower.py [--mbit 25 100 5] [--output results/wan_flower.json]

Makes network namespaces (root, iproute2), starts a SuperLink and SuperNodes in them, runs the app in mnist_app, and removes
everything. The time a link is busy is measured at the link; accuracy against wall-clock is the server's. Compression does more rounds in
less time, so it is given twice as many. The time before the first round (starting processes) does not count. Flower's own grid looks
for replies every three seconds, perbit's sooner; that is a part of the measured time of a round, not of a link's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from links import Links, LinksUnavailableError, require
from meter import Meter

from perbit.files import write_json
from perbit.report.style import COLOURS, picture

APP = Path(__file__).parent / "mnist_app"
UP, DOWN = "topk(0.1) | mwl2(bits=3, m=2) | rans", "topk(0.2) | mwl2(bits=3, m=2) | rans"
METHODS = {"float32": ("", ""), "perbit": (UP, DOWN)}
ROUNDS = {5: 2, 25: 8, 100: 8}  # of float32
NODES, PORT = 2, 8600
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}


def one_run(mbit: int, up: str, down: str, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Start everything, run the app, stop everything; a row for each round."""
    home, result = folder / "flwr", folder / "rounds.jsonl"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.wan]\naddress = "127.0.0.1:{PORT}"\ninsecure = true\n')
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # Flower's programs start each other by name
    environment = os.environ | QUIET | {"FLWR_HOME": str(home), "PERBIT_STATE": str(folder / "state"), "PATH": path}
    with ExitStack() as stack:
        links = stack.enter_context(Links(clients=NODES, mbit=mbit))
        meter = stack.enter_context(Meter(links._bridge, NODES, mbit))

        def start(argv: list[str], log: str) -> None:
            file = stack.enter_context((folder / log).open("wb"))
            process = subprocess.Popen(argv, env=environment, stdout=file, stderr=file)
            stack.callback(_stop, process)

        listen = ["--host", "0.0.0.0", "--port", str(PORT), "--disable-runtime-dependency-installation"]
        start(links.server_command(["flower-superlink", "--insecure", *listen]), "superlink.log")
        time.sleep(6)
        for node in range(NODES):
            reach = ["--superlink", f"{links.server_address}:{PORT}", "--port", "8610"]
            config = ["--node-config", f"partition-id={node} num-partitions={NODES}"]
            start(links.command(node, ["flower-supernode", "--insecure", *reach, *config]), f"node{node}.log")
        time.sleep(6)
        settings = f'rounds={rounds} nodes={NODES} up="{up}" down="{down}" result="{result}"'
        with (folder / "run.log").open("wb") as log:
            argv = ["flwr", "run", str(APP), "wan", "--stream", "--run-config", settings]
            subprocess.run(
                links.server_command(argv), env=environment, stdout=log, stderr=log, check=True, timeout=3600
            )
        lines = [json.loads(line) for line in result.read_text().splitlines()]
        if len(lines) != rounds + 1:
            raise RuntimeError(f"only {len(lines) - 1} of {rounds} rounds; see {folder}")
        return [_row(meter, before, after) for before, after in pairwise(lines)]


def _row(meter: Meter, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """A round lasts from the end of the last test to its own end; the slowest link counts."""
    carried = [meter.between(before["tested"], after["ended"], client) for client in range(NODES)]
    return {
        "round": after["round"],
        "seconds": after["ended"] - before["tested"],
        "transfer_seconds": max(link.busy_seconds for link in carried),
        "wire_up_bytes": sum(link.sent for link in carried),
        "wire_down_bytes": sum(link.received for link in carried),
        "accuracy": after["accuracy"],
        "payload_up_bytes": after.get("up_bytes", 0) - before.get("up_bytes", 0),
        "payload_down_bytes": after.get("down_bytes", 0) - before.get("down_bytes", 0),
    }


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def summary(mbit: int, rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The two ratios that matter: transfer time of a round after the first, and wall-clock to float32's accuracy."""
    plain, ours = rows["float32"], rows["perbit"]

    def usual(of: list[dict[str, Any]]) -> float:
        later = sorted(row["transfer_seconds"] for row in of[1:])
        return float(later[len(later) // 2])

    target, needed, spent = plain[-1]["accuracy"], None, 0.0
    for row in ours:
        spent += row["seconds"]
        if row["accuracy"] >= target and needed is None:
            needed = spent
    total = sum(row["seconds"] for row in plain)
    return {
        "mbit": mbit,
        "transfer_seconds": {"float32": usual(plain), "perbit": usual(ours)},
        "transfer_ratio": usual(plain) / usual(ours),
        "transfer_ratio_with_the_first_model": _mean(plain) / _mean(ours),
        "accuracy_of_float32": target,
        "seconds_of_float32": total,
        "seconds_of_perbit_to_that_accuracy": needed,
        "time_ratio": None if needed is None else total / needed,
    }


def _mean(rows: list[dict[str, Any]]) -> float:
    return float(sum(row["transfer_seconds"] for row in rows) / len(rows))


def draw(path: Path, runs: dict[int, dict[str, list[dict[str, Any]]]]) -> None:
    with picture(path, 1, len(runs), width=4.2 * len(runs), height=3.6) as figure:
        for axes, (mbit, rows) in zip(figure.axes, runs.items(), strict=True):
            for colour, (name, of) in zip(COLOURS, rows.items(), strict=False):
                seconds = [sum(row["seconds"] for row in of[: i + 1]) for i in range(len(of))]
                axes.plot(seconds, [100 * row["accuracy"] for row in of], "o-", color=colour, label=name)
            axes.set(title=f"{mbit} Mbit/s up and down", xlabel="seconds, measured", ylabel="test accuracy, %")
            axes.legend()


def _said(mbit: int, name: str, row: dict[str, Any]) -> str:
    wire = f"{row['wire_up_bytes'] / 1e6:7.2f} MB up, {row['wire_down_bytes'] / 1e6:7.2f} MB down"
    times = f"{row['seconds']:6.1f} s, link busy {row['transfer_seconds']:6.2f} s"
    return f"{mbit:4} Mbit/s  {name:8} round {row['round']:2}: {times}, {wire}, accuracy {row['accuracy']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, nargs="+", default=[25, 100, 5])
    parser.add_argument("--rounds", type=int, help="of float32, for every speed")
    parser.add_argument("--output", type=Path, default=Path("results/wan_flower.json"))
    options = parser.parse_args()
    try:
        require()
    except LinksUnavailableError as error:
        raise SystemExit(f"skipped: {error}") from None
    runs = _finished(options.output)
    for mbit in options.mbit:
        rounds = options.rounds or ROUNDS.get(mbit, 8)
        for name, (up, down) in METHODS.items():
            if name in runs.setdefault(mbit, {}):
                continue
            folder = Path(tempfile.mkdtemp(prefix=f"perbit-wan-{name}-{mbit}-"))
            rows = one_run(mbit, up, down, rounds if name == "float32" else 2 * rounds, folder)
            print("\n".join(_said(mbit, name, row) for row in rows), flush=True)
            shutil.rmtree(folder)
            runs[mbit][name] = rows
            publish(options.output, runs)
    publish(options.output, runs)


def publish(output: Path, runs: dict[int, dict[str, list[dict[str, Any]]]]) -> None:
    found = [summary(mbit, of) for mbit, of in runs.items() if len(of) == len(METHODS)]
    write_json(output, {"methods": METHODS, "nodes": NODES, "summary": found, "runs": runs})
    if found:
        print(json.dumps(found[-1]), flush=True)
        draw(output.with_suffix(".png"), runs)


def _finished(output: Path) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """The runs of an earlier call with the same methods: the same command goes on."""
    try:
        known = json.loads(output.read_text())
    except (OSError, ValueError):
        return {}
    if known.get("methods") != {name: list(specs) for name, specs in METHODS.items()}:
        return {}
    return {int(mbit): of for mbit, of in known["runs"].items()}


if __name__ == "__main__":
    main()
