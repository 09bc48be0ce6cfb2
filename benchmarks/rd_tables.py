"""Puts the numbers of results/rd*.json into the tables of docs/rd.md and docs/choosing.md.

    python benchmarks/rd_tables.py

A table stands between `<!-- table NAME -->` and `<!-- end -->`; what is between them is replaced.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = ("docs/rd.md", "docs/choosing.md")
BOUND = "bound R(D)"
LISTED = (
    "rd(?)",
    "topk(?) | fp16",
    "topk(?) | fp(5, 2) | rans",
    "topk(?) | lloyd(3) | rans",
    "topk(?) | mwl2(2, 2) | rans",
    'fp(2, 1, scale=?, reconstruct="centroid") | rans',
    "uniform(?) | rans",
    "lloyd(?)",
    "lloyd(?) | rans",
    "patterns(64, ?)",
    "patterns(16, ?)",
    "eden(?)",
    "qsgd(?) | rans",
)
ERRORS = (-13.0, -10.0, -5.0, -2.5, -1.2)
MIDDLE = -10.0  # dB at which recordings are shown one by one


def results(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first, *others = head
    lines = [f"| {' | '.join([first, *others])} |", "|---|" + "---:|" * len(others)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def code(spec: str) -> str:
    return "`" + spec.replace("|", "\\|") + "`"


def rates(name: str) -> str:
    """The error of specs at some rates; bold: the best of all that were measured."""
    found = results(name)["decibels_at_rates"]
    columns = list(found[BOUND])
    specs = [spec for spec in found if spec != BOUND]
    best = {rate: min(x for spec in specs if (x := found[spec][rate]) is not None) for rate in columns}

    def cell(spec: str, rate: str) -> str:
        value = found[spec][rate]
        text = "" if value is None else f"{value:.2f}"
        return f"**{text}**" if spec != BOUND and value == best[rate] else text

    rows = ((spec, [cell(spec, rate) for rate in columns]) for spec in (BOUND, *LISTED) if spec in found)
    named = (["R(D) bound" if spec == BOUND else code(spec), *cells] for spec, cells in rows)
    return table(["dB at bits per value", *(f"{float(rate):g}" for rate in columns)], named)


def nncodec(_: str) -> str:
    """Bytes over those of NNCodec at the same error: of its plain mode, and of its optimised one."""
    found = results("rd")
    earlier = {row["recording"] for row in found.get("earlier_rows", [])}
    rows = [*found["rows"], *found.get("earlier_rows", [])]
    names = list(dict.fromkeys(row["recording"] for row in rows))
    cells = {(row["recording"], row["db"]): _both(row, "bytes_by", ".2f") for row in rows}
    lines = (
        [f"`{name}`" + " †" * (name in earlier), *(cells.get((name, error), "") for error in ERRORS)] for name in names
    )
    return table(["bytes over plain / optimised", *(f"{error:g} dB" for error in ERRORS)], lines)


def _both(row: dict[str, Any], key: str, form: str) -> str:
    modes = ("plain", "optimised")
    return " / ".join(format(row[f"{key}_{mode}"], form) for mode in modes) if f"{key}_plain" in row else "out of reach"


def nncodec_means(_: str) -> str:
    found = results("rd")
    said = []
    for mode in ("plain", "optimised"):
        mean, largest = found[f"mean_bytes_by_{mode}"], found[f"largest_bytes_by_{mode}"]
        ways = [f"{_mean(found['rows'], f'{way}_speed_by_{mode}'):.1f}" for way in ("encode", "decode")]
        said.append([mode, f"{mean:.2f}", f"{largest:.2f}", *ways])
    head = ["NNCodec", "bytes of `rd`, geometric mean", "largest", "encodes, times as fast", "decodes, times as fast"]
    return f"{table(head, said)}\n\n{found['peer']}; its speed {found['peer_speed']}."


def nncodec_speed(_: str) -> str:
    """Megabytes a second, and in brackets over NNCodec's."""
    found = results("rd_speed")
    ways = {"encode": "encode, `step`", "encode_by_bits": "encode, `bits`", "decode": "decode"}
    lines = (
        [
            f"`{row['recording']}`, {row['db']:.1f} dB",
            f"{row['bytes_by_peer']:.2f}",
            *(f"{row[f'{way}_mb_per_second']:.0f} ({row[f'{way}_times_peer']:.1f} ×)" for way in ways),
        ]
        for row in found["rows"]
    )
    return table(["MB/s (over NNCodec's)", "bytes over NNCodec's", *ways.values()], lines) + f"\n\n{found['peer']}."


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    logs = [math.log(row[key]) for row in rows if key in row]
    return math.exp(sum(logs) / len(logs))


def parts_by_error(_: str) -> str:
    """Means over recordings; in brackets over how many, where that is not all of them."""
    found = results("rd_parts")
    every = len({row["recording"] for row in found["rows"]})
    errors = list(found["means"]["the whole codec"])

    def cell(title: str, error: str) -> str:
        same = [row for row in found["rows"] if row["variant"] == title and row["db"] == float(error)]
        fair = sum(bool(row.get("is_fair")) for row in same)
        return _ratio(found["means"][title].get(error)) + (f" ({fair})" if fair < every else "")

    rows = ([title, *(cell(title, error) for error in errors)] for title in list(found["means"])[1:])
    return table(["bytes, over those of the whole codec", *(f"{error} dB" for error in errors)], rows)


def parts_by_recording(_: str) -> str:
    rows = [row for row in results("rd_parts")["rows"] if row["db"] == MIDDLE]
    names, titles = (list(dict.fromkeys(row[key] for row in rows)) for key in ("recording", "variant"))
    fair = {(row["variant"], row["recording"]): row["bytes_by_whole"] for row in rows if row.get("is_fair")}
    lines = ([title, *(_ratio(fair.get((title, name))) for name in names)] for title in titles[1:])
    return table([f"at {MIDDLE:g} dB", *(f"`{name}`" for name in names)], lines)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def speed(_: str) -> str:
    keys = {"encode_by_step": "encode, `step`", "encode_by_bits": "encode, `bits`", "decode_by_step": "decode"}
    rows = (
        [f"`{name}`", *(f"{times[f'{key}_times_plain']:.1f}" for key in keys)]
        for name, times in results("rd_parts")["speed"].items()
    )
    return table(["seconds, over those of `uniform(4) \\| rans`", *keys.values()], rows)


TABLES: dict[str, Callable[[str], str]] = {
    "rates": rates,
    "nncodec": nncodec,
    "nncodec_means": nncodec_means,
    "nncodec_speed": nncodec_speed,
    "parts_by_error": parts_by_error,
    "parts_by_recording": parts_by_recording,
    "speed": speed,
}


def filled(page: str) -> str:
    """A page with its tables as the results say."""

    def replaced(match: re.Match[str]) -> str:
        name, _, argument = match[1].partition(" ")
        return f"<!-- table {match[1]} -->\n\n{TABLES[name](argument)}\n\n<!-- end -->"

    return re.sub(r"<!-- table (.+?) -->.*?<!-- end -->", replaced, page, flags=re.DOTALL)


def main() -> None:
    for name in PAGES:
        path = ROOT / name
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
