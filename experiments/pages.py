"""Brings docs/papers and docs/hundred.md up to date: what these pages say of runs comes from the files of results.

    python experiments/pages.py             writes what has changed
    python experiments/pages.py --check     writes nothing, names what would change, and fails if anything would

In a page, the text between <!--= WHAT NAME; MORE --> and <!--/--> is made here:

    outcome NAME; TEXT     REPRODUCED, NOT REPRODUCED or INCONCLUSIVE of the claims that contain TEXT, with the seeds so far; "not run yet"
    seeds NAME             how many seeds have run
    verdicts NAME          all sentences, as a list
    table NAME             accuracy and bytes of every method, over its seeds
    finals NAME            the same with the last accuracy, and how many times fewer bytes than float32 both ways
    excess                 MCM's table of excess losses, paper and ours
    means NAME             the mean excess losses of a convex run
    bytes NAME             how many fewer bytes MCM needs on a data set
    down NAME              what each algorithm of a convex run sent down
    steps                  the largest converging steps
    ratios                 Theorem 9's ratios
    shapes NAME            the fitted shapes of M22 by round
    minutes NAME           what the plan expects
    left                   what the plan still has to run, in hours

NAME is a run of `experiments/run.py`, a folder of results/compare, or a JSON file of results.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perbit_papers.series import late_accuracy

sys.path.insert(0, str(Path(__file__).parent))
from run import PLAN

PAPERS, HUNDRED = Path("docs/papers"), Path("docs/hundred.md")
NOT_YET = "not run yet"
WHOLE = ("float32", "SGD")  # methods that send 32 bits a value
OUTCOMES = ("NOT REPRODUCED", "REPRODUCED", "INCONCLUSIVE", "AGREES", "DIFFERS")
_MADE = re.compile(r"(<!--= ?(.*?) -->)(.*?)(<!--/-->)", re.DOTALL)
_SO_FAR = re.compile(r"; (\d+ of \d+) seeds so far")
_PLANNED = {run.name: run for run in PLAN}
Run = dict[str, Any]


# --- what the files of results say ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What one file of results says: its sentences, and the runs behind them."""

    sentences: tuple[str, ...] = ()
    heading: str = ""  # mean excess losses, where there are any
    runs: tuple[Run, ...] = ()
    content: Any = None

    @property
    def seeds(self) -> set[int]:
        return {run["seed"] for run in self.runs}


@cache
def outcome_of(name: str) -> Outcome:
    """Nothing while the run is not there."""
    path = _file(name)
    if not path.is_file():
        return Outcome()
    if path.suffix == ".txt":
        return Outcome(_claims(path.read_text("utf-8").splitlines()), runs=_compared(path.parent / "results.json"))
    content = json.loads(path.read_text("utf-8"))
    if "verdict" in content:
        heading, *sentences = content["verdict"].splitlines()
        return Outcome(_claims(sentences), heading, _by_seed(content), content)
    return Outcome(
        _claims(map(_sentence, content.get("verdicts", []))), runs=tuple(content.get("runs", [])), content=content
    )


def _file(name: str) -> Path:
    if name in _PLANNED:
        return Path(_PLANNED[name].makes)
    alone = Path("results") / f"{name}.json"
    return alone if alone.is_file() else Path("results/compare") / name / "verdict.txt"


def _sentence(said: str | dict[str, Any]) -> str:
    """What needs no seeds agrees or not."""
    if isinstance(said, str):
        return said
    return f"{'AGREES' if said['agrees'] else 'DIFFERS'}: {said['claim']}: {said['found']}"


def _claims(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if line.startswith(OUTCOMES))


def _compared(path: Path) -> tuple[Run, ...]:
    """Runs of `perbit compare`, as those of a series look."""
    found = json.loads(path.read_text("utf-8"))["runs"] if path.is_file() else []
    return tuple({**run, "method": run["method"]["name"]} for run in found)


def _by_seed(content: dict[str, Any]) -> tuple[Run, ...]:
    """Log₁₀ excess losses of a convex run; of files of before seeds were kept, those of their one."""
    first = {run["algorithm"]: run["log10_excess"] for run in content["results"]}
    rows = content.get("log10_excess", [first])
    return tuple(
        {"method": name, "seed": i, "excess": value} for i, row in enumerate(rows) for name, value in row.items()
    )


# --- what stands in the pages -----------------------------------------------------------------------------------------


def outcome(name: str, text: str = "") -> str:
    """One word for claims that ended alike, otherwise how many ended how."""
    ended = [one for one in outcome_of(name).sentences if text in one]
    if not ended:
        return NOT_YET
    words = [next(word for word in OUTCOMES if one.startswith(word)) for one in ended]
    counted = [f"{word} ({words.count(word)} of {len(words)} claims)" for word in OUTCOMES if word in words]
    said = words[0] if len(counted) == 1 else ", ".join(reversed(counted))
    return said + (f", {_fewest(ended)} seeds so far" if _fewest(ended) else "")


def _fewest(sentences: Iterable[str]) -> str:
    """Of unfinished series: "2 of 5"."""
    return min((found[1] for one in sentences if (found := _SO_FAR.search(one))), key=_first_number, default="")


def _first_number(text: str) -> int:
    return int(text.split()[0])


def seeds(name: str) -> str:
    """Those that its claims have."""
    found = outcome_of(name)
    if not found.sentences:
        return "none"
    return str(_first_number(_fewest(found.sentences) or str(len(found.seeds))))


def verdicts(name: str) -> str:
    said = outcome_of(name).sentences
    return _block("\n".join(f"- {one}" for one in said) if said else f"Not run yet: about {minutes(name)}.")


def minutes(name: str) -> str:
    return f"{_PLANNED[name].minutes:.0f} minutes on a quiet core"


def left() -> str:
    """What the plan still has to run, and how long that takes."""
    hours = {run.name: (1 - _share_done(run.name)) * run.minutes / 60 for run in PLAN}
    missing = {name: time for name, time in hours.items() if time}
    shown = ", ".join(f"{name} {time:.1f}" for name, time in missing.items())
    return f"{shown}; {sum(missing.values()):.0f} hours in all" if missing else "nothing"


def _share_done(name: str) -> float:
    sentences = outcome_of(name).sentences
    if not (so_far := _fewest(sentences)):
        return float(bool(sentences))
    n, planned = map(int, so_far.split(" of "))
    return n / planned


def table(name: str) -> str:
    """Accuracies as the claims compare them: the mean of the last third of the evaluations."""
    runs = outcome_of(name).runs
    whole = [_sent(run, "bytes_up") for run in runs if run["method"] in WHOLE]
    lines = [
        "| | seeds | late accuracy, % | MB up | MB down | bits a value up |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        up, down = (statistics.fmean(_sent(run, key) for run in own) / 1e6 for key in ("bytes_up", "bytes_down"))
        reached = _spread([100 * late_accuracy(run) for run in own])
        bits = f"{32e6 * up / statistics.fmean(whole):.2f}" if whole else ""
        lines.append(f"| {method} | {len(own)} | {reached} | {up:.0f} | {down:.0f} | {bits} |")
    return _block("\n".join(lines) if runs else "The table comes with the first run.")


def finals(name: str) -> str:
    """Accuracies after the last round, and how many times fewer bytes than float32, up and in both directions together."""
    runs = outcome_of(name).runs
    lines = [
        "| | seeds | last accuracy, % | MB up | fewer bytes up | fewer both ways |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    whole = [run for run in runs if run["method"] in WHOLE]
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        reached = _spread([100 * run["history"][-1]["accuracy"] for run in own])
        up, both = (_times_fewer(own, whole, keys) for keys in (("bytes_up",), ("bytes_up", "bytes_down")))
        sent = statistics.fmean(run["bytes_up"] for run in own) / 1e6
        lines.append(f"| {method} | {len(own)} | {reached} | {sent:.1f} | {up} | {both} |")
    return _block("\n".join(lines) if runs else "The table comes with the first run.")


def _times_fewer(own: list[Run], whole: list[Run], keys: tuple[str, ...]) -> str:
    def sent(runs: list[Run]) -> float:
        return statistics.fmean(sum(run[key] for key in keys) for run in runs)

    return f"{sent(whole) / sent(own):.3g} ×" if whole else ""


def pages() -> list[Path]:
    """Those that are made here in part."""
    return [*sorted(PAPERS.glob("*.md")), HUNDRED]


def _sent(run: Run, key: str) -> float:
    return float(run[key] if key in run else run["history"][-1][key])


def _spread(values: list[float]) -> str:
    more = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{more}"


ALGORITHMS = ("sgd", "diana", "mcm", "artemis", "dore")


def excess() -> str:
    names = "SGD | DIANA | MCM | Artemis | Dore"
    lines = [f"| | epochs | seeds | {names} |", "| --- | ---: | ---: | --- | --- | --- | --- | --- |"]
    for data in ("phishing", "a9a", "w8a"):
        files = [f"results/mcm/excess_loss_{data}{more}.json" for more in ("", "_step_0.5")]
        for path in filter(Path.is_file, map(Path, files)):
            content = json.loads(path.read_text("utf-8"))
            rows, step = _by_seed(content), content.get("step_times_L", 1.0)
            if step == 1:
                lines.append(f"| {data}, paper | 450 | 5 | {_cells(lambda name, c=content: c['text'].get(name))} |")
            label = f"{data}, ours" + ("" if step == 1 else f", γ = {step:g}/L")
            mean = _cells(lambda name, r=rows: statistics.fmean(x["excess"] for x in r if x["method"] == name))
            lines.append(f"| {label} | {content['epochs']:g} | {len({row['seed'] for row in rows})} | {mean} |")
    return _block("\n".join(lines))


def _cells(value: Callable[[str], float | None]) -> str:
    return " | ".join("" if (found := value(name)) is None else f"{found:.2f}" for name in ALGORITHMS)


def means(name: str) -> str:
    found = outcome_of(name)
    if not found.runs:
        return NOT_YET
    names = dict.fromkeys(run["method"] for run in found.runs)
    if not found.sentences:
        n = "one seed, before its test was stated"
        shown = ", ".join(f"{a} {_mean(found, a):.2f}" for a in names)
        return f"{n}: {shown}"
    return found.heading.split(", ", 1)[1]


def _mean(found: Outcome, algorithm: str) -> float:
    return statistics.fmean(run["excess"] for run in found.runs if run["method"] == algorithm)


def down(name: str) -> str:
    """What each algorithm sent down, with the first seed."""
    found = outcome_of(name).content["results"]
    return ", ".join(f"{run['algorithm']} {run['totals']['bytes_down'] / 1e3:.0f} kB" for run in found)


def bytes_(name: str) -> str:
    found = outcome_of(f"convex-{name}").content["bytes_at_equal_loss"]
    return f"{found['ratio']:.1f} times fewer ({found['mcm_bytes'] / 1e6:.2f} MB against {found['sgd_bytes'] / 1e6:.2f} MB)"


def steps() -> str:
    """γL, the mean over seeds, beside theory's."""
    runs = outcome_of("largest-step").runs
    lines = ["| | d | largest γL that converges | theory's γL |", "| --- | ---: | ---: | ---: |"]
    for name, d in dict.fromkeys((run["algorithm"], run["d"]) for run in sorted(runs, key=lambda run: run["d"])):
        own = [run for run in runs if (run["algorithm"], run["d"]) == (name, d)]
        found, theory = (statistics.fmean(run[key] for run in own) for key in ("largest_times_L", "theory_times_L"))
        lines.append(f"| {name} | {d} | {found:.3f} | {theory:.4f} |")
    return _block("\n".join(lines) if runs else "The table comes with the run.")


def ratios() -> str:
    runs = outcome_of("theorem-9").runs
    lines = ["| | C | C times the ratio, ± sd over seeds | mean excess loss |", "| --- | ---: | ---: | ---: |"]
    for name in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == name]
        product = [run["C"] * run["ratio"] for run in own]
        spread = f" ± {statistics.stdev(product):.3f}" if len(product) > 1 else ""
        loss = statistics.fmean(run["mean_excess"] for run in own)
        lines.append(f"| {name} | {own[0]['C']} | {statistics.fmean(product):.3f}{spread} | {loss:.4f} |")
    return _block("\n".join(lines) if runs else "The table comes with the run.")


def shapes(name: str) -> str:
    """β of every layer's updates after the first, the middle and the last round: least, mean and largest over layers (Fig. 4)."""
    runs = [run for run in outcome_of(name).runs if run.get("shapes")]
    lines = ["| | round | least β | mean β | largest β |", "| --- | ---: | ---: | ---: | ---: |"]
    for run in (run for run in runs if run["seed"] == min(one["seed"] for one in runs)):
        n = len(run["shapes"])
        for at in sorted({0, n // 2, n - 1}):
            betas = list(run["shapes"][at].values())
            numbers = f"{min(betas):.2f} | {statistics.fmean(betas):.2f} | {max(betas):.2f}"
            lines.append(f"| {run['method']} | {at + 1} | {numbers} |")
    return _block("\n".join(lines) if runs else "The shapes come with the runs.")


def _block(text: str) -> str:
    return f"\n\n{text}\n\n"


MAKERS: dict[str, Callable[..., str]] = {
    "outcome": outcome, "seeds": seeds, "verdicts": verdicts, "minutes": minutes, "table": table, "excess": excess, "means": means,
    "bytes": bytes_, "steps": steps, "ratios": ratios, "shapes": shapes, "left": left, "down": down, "finals": finals,
}  # fmt: skip


def made(what: str) -> str:
    """The text for one mark."""
    call, _, more = what.partition(";")
    maker, *names = call.split()
    return MAKERS[maker](*names, *([more.strip()] if more else []))


def renewed(page: str) -> str:
    """A page with all that comes from results made anew."""
    return _MADE.sub(lambda found: f"{found[1]}{made(found[2])}{found[4]}", page)


def marks(page: str) -> list[str]:
    """What a page takes from results."""
    return [found[2] for found in _MADE.finditer(page)]


def by_hand(page: str) -> str:
    """A page without what is made here."""
    return _MADE.sub("", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    texts = {path: path.read_text("utf-8") for path in pages()}
    changed = {path: new for path, text in texts.items() if (new := renewed(text)) != text}
    for path, new in changed.items():
        print(f"{path} {'is not up to date' if check else 'renewed'}")
        if not check:
            path.write_text(new, "utf-8")
    if check and changed:
        raise SystemExit("run `python experiments/pages.py`")


if __name__ == "__main__":
    main()
