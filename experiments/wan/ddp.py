"""Two DDP ranks over links of 25, 100 and 1000 Mbit/s: accuracy against wall-clock time, float32 against coded gradients.

    python experiments/wan/ddp.py [--mbit 25 100 1000] [--epochs 8] [--output results]

Real processes, each in a network namespace of its own, train an MLP of 1.1 million parameters on the digits of scikit-learn. All methods of a
link run in the same two processes, from the same first model, over the same batches; the clock stops while accuracy is measured. The faster
links run several times, the fastest run of each method counts. Bytes are those of the link's own counter, headers included.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import links
import pair
import torch
import torch.distributed as dist

from perbit.report.style import COLOURS, MARKERS, picture
from perbit_papers.results import RESULTS, write_json

METHODS = ("float32", "float16", "PowerSGD(4)", "qsgd(15) | rans", "topk(0.01) | fp16", "topk(0.001) | fp16")
WIDTH = 1024
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "ddp" / "train.py"


def example() -> Any:
    """The example's data and model: what is measured here is what users start from."""
    spec = importlib.util.spec_from_file_location("ddp_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(method: str, epochs: int) -> dict[str, Any]:
    """Seconds and accuracy after every epoch, mean seconds of a step, bytes this rank put on its link."""
    code = example()
    x, y, test_x, test_y = code.digits()
    trainer = code.Trainer(None, WIDTH)
    trainer.model, _ = pair.hooked(trainer.model.module, method)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.8)
    dist.barrier()
    curve, seconds, sent = [], 0.0, pair.bytes_on_wire("eth0")
    for epoch in range(epochs):
        begin = time.perf_counter()
        trainer.epoch(epoch, x, y)
        dist.barrier()
        seconds += time.perf_counter() - begin
        curve.append((seconds, trainer.accuracy(test_x, test_y)))
    steps = epochs * -(-len(x) // (code.BATCH * dist.get_world_size()))
    sent = pair.bytes_on_wire("eth0") - sent
    return {"method": method, "step_seconds": seconds / steps, "bytes_per_step": sent / steps, "curve": curve}


def rank_main(epochs: int, rounds: int, output: Path) -> None:
    pair.join()
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for method in METHODS:
            row = train(method, epochs)
            if method not in best or row["step_seconds"] < best[method]["step_seconds"]:
                best[method] = row
    if dist.get_rank() == 0:
        output.write_text(json.dumps(list(best.values())))
    dist.destroy_process_group()


def seconds_to(row: dict[str, Any], accuracy: float) -> float | None:
    """When a method first reached an accuracy."""
    return next((seconds for seconds, reached in row["curve"] if reached >= accuracy), None)


def measure(mbit: float, epochs: int, rounds: int) -> list[dict[str, Any]]:
    """All methods over one link, with what float32 took for each of them."""
    with links.Links(clients=2, mbit=mbit) as made, tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        pair.launch(__file__, [f"--epochs={epochs}", f"--rounds={rounds}", f"--rank-output={output}"], made)
        rows: list[dict[str, Any]] = json.loads(output.read_text())
    plain = next(row for row in rows if row["method"] == "float32")
    goal = plain["curve"][-1][1] - 0.01  # a percent below where float32 ends
    print(f"{mbit:g} Mbit/s; seconds to an accuracy of {goal:.3f}")
    for row in rows:
        row["times_faster"] = plain["step_seconds"] / row["step_seconds"]
        row["times_fewer_bytes"] = plain["bytes_per_step"] / row["bytes_per_step"]
        row["seconds_to_goal"] = seconds_to(row, goal)
        reached = "never" if row["seconds_to_goal"] is None else f"{row['seconds_to_goal']:.1f} s"
        print(
            f"  {row['method']:<22}{1e3 * row['step_seconds']:9.1f} ms a step, {row['times_faster']:6.1f} x faster, "
            f"{row['times_fewer_bytes']:6.1f} x fewer bytes, accuracy {row['curve'][-1][1]:.3f}, goal {reached}",
            flush=True,
        )
    return rows


def draw(path: Path, results: dict[str, list[dict[str, Any]]]) -> None:
    with picture(path, 1, len(results), width=4.2 * len(results), height=4.2) as figure:
        for axis, (name, rows) in zip(figure.axes, results.items(), strict=True):
            for row, colour, marker in zip(rows, COLOURS, MARKERS, strict=False):
                axis.plot(*zip(*row["curve"], strict=True), color=colour, marker=marker, label=row["method"])
            axis.set(xscale="log", title=name, xlabel="seconds of training (log scale)")
        figure.axes[0].set_ylabel("test accuracy")
        figure.axes[-1].legend(loc="lower right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, nargs="+", default=[25, 100, 1000])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2, help="how often links of 100 Mbit/s and more are measured")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--rank-output", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_output:
        rank_main(given.epochs, given.rounds, given.rank_output)
        return
    if reason := links.unavailable():
        print(f"skipped, no rate-limited links here: {reason}")
        return
    results = {
        f"{mbit:g} Mbit/s": measure(mbit, given.epochs, given.rounds if mbit >= 100 else 1) for mbit in given.mbit
    }
    parameters = sum(parameter.numel() for parameter in example().make_model(WIDTH).parameters())
    write_json(given.output / "wan_ddp.json", {"parameters": parameters, "ranks": 2, "epochs": given.epochs, "links": results})  # fmt: skip
    draw(given.output / "wan_ddp.png", results)


if __name__ == "__main__":
    main()
