"""examples/ddp/train.py by two processes, over links whose counters see every byte where the machine allows them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import wan

SCRIPT = Path(__file__).parent.parent / "examples" / "ddp" / "train.py"


def train(links: Any, *arguments: str) -> str:
    """What rank 0 prints."""
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": "29533",
        "MASTER_ADDR": links.address(0) if links else "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "eth0" if links else "lo",
    }
    command = [sys.executable, str(SCRIPT), *arguments]
    ranks = [
        subprocess.Popen(
            links.command(rank, command) if links else command,
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return printed[0]


def test_the_example_trains_counts_its_bytes_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    checkpoint, measured = tmp_path / "checkpoint", tmp_path / "measured.json"
    arguments = ["--checkpoint", str(checkpoint), "--json", str(measured)]
    allowed = wan.links.unavailable() is None
    with wan.links.Links(clients=2, mbit=1000, name="e") if allowed else nullcontext() as links:
        before = links.sent_bytes(1) if links else 0
        printed = train(links, *arguments, "--epochs", "3")
        counted = json.loads(measured.read_text())["sent_bytes"]
        if links:  # headers, acknowledgements and the rendezvous come on top (on rank 0 also the first model, which DDP broadcasts)
            assert counted < links.sent_bytes(1) - before < 1.2 * counted + 50_000
        found = re.search(r"each rank sent [\d.]+ MB, (\d+) times less", printed)
        assert found is not None
        assert int(found[1]) > 60
        again = train(links, *arguments, "--epochs", "5")
    assert "epoch 2" in printed
    assert "epoch 2" not in again
    assert json.loads(measured.read_text())["curve"][-1][1] > 0.85
    first, second = (torch.load(checkpoint / f"rank{rank}.pt", weights_only=True)["model"] for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
