"""The same training by four workers, each behind a rate-limited link: what the presets wait for.

    sudo python examples/outer/links.py --mbit 25 --presets diloco diloco_int4 rd

Every worker is a process in a network namespace of its own (experiments/wan/links.py says how); nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "experiments" / "wan"))
import pair  # noqa: E402
from links import Links  # noqa: E402


def trained(preset: str, mbit: float, workers: int, arguments: list[str]) -> dict[str, Any]:
    """What the first worker measured."""
    with Links(clients=workers, mbit=mbit) as links, tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        pair.launch(str(HERE / "train.py"), ["--preset", preset, "--json", str(output), *arguments], links, workers)
        measured: dict[str, Any] = json.loads(output.read_text())
        return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=25)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--presets", nargs="+", default=["diloco", "diloco_int4", "sparseloco", "rd"])
    parser.add_argument("--output", type=Path, help="write what was measured to this file")
    given, more = parser.parse_known_args()
    rows = {preset: trained(preset, given.mbit, given.workers, more) for preset in given.presets}
    print(f"{given.workers} workers, {given.mbit:g} Mbit/s")
    for preset, row in rows.items():
        stalled = row["stalled_seconds"] / row["seconds"]
        print(
            f"  {preset:<12}{row['seconds']:7.1f} s, {stalled:6.1%} of it waiting, {row['total_bytes'] / 1e6:8.3f} MB, loss {row['loss']:.3f}"
        )
    if given.output:
        given.output.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
