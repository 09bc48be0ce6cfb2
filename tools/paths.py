"""How much code a use of perbit passes through: the files and functions of src/perbit that run.

    python tools/paths.py [--list] [--source FOLDER]

Three uses are counted: one tensor encoded, one round between a server and a client, one round of a comparison. "the first time" makes the
objects too; "again" is the second time, when caches are warm. Code that runs at import is not counted, nor are comprehensions, which belong
to the function they stand in. The last row is another count, a whole run of `perbit compare` in a process of its own, with its command
line and everything that runs: comprehensions, lambdas, and the bodies of modules and classes that are imported on the way.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from inspect import CO_OPTIMIZED, signature
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SPEC = "topk(0.01) | qsgd(15) | rans"
Function = tuple[str, str]  # file, qualified name
Use = Callable[["Recorder"], None]  # calls `again` before it does something for the second time


class Recorder:
    """The functions of a package that run while this is open, or all its code."""

    def __init__(self, package: Path, only_functions: bool = True) -> None:
        self.package, self.only_functions = f"{package}/", only_functions
        self.before: set[Function] = set()
        self.now: set[Function] = set()

    def again(self) -> None:
        """From here on the second time."""
        self.before, self.now = self.before | self.now, set()

    def __enter__(self) -> Recorder:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.package):
            return
        file = code.co_filename.removeprefix(self.package)
        if not self.only_functions:
            self.now.add((file, f"{code.co_qualname}:{code.co_firstlineno}"))
        elif _is_function(code):
            self.now.add((file, code.co_qualname))


def _is_function(code: CodeType) -> bool:
    """Modules and the bodies of classes are not; of what has no name, only a lambda is."""
    is_named = not code.co_name.startswith("<") or code.co_name == "<lambda>"
    return is_named and bool(code.co_flags & CO_OPTIMIZED)


# --- what is counted -------------------------------------------------------------------------------------------------


def one_tensor(recorder: Recorder) -> None:
    """One array of 100 000 values to bytes."""
    import numpy as np

    import perbit

    values = np.random.default_rng(0).laplace(size=100_000).astype(np.float32)
    with recorder:
        perbit.encode(values, SPEC, seed=0)
        recorder.again()
        perbit.encode(values, SPEC, seed=0)


def one_session_round(recorder: Recorder) -> None:
    """A matrix and a bias to one client and back; the first round carries the whole model, the second what changed."""
    import numpy as np

    from perbit.session import ClientSession, ServerSession

    random = np.random.default_rng(0)
    models = [
        {name: random.normal(size=shape).astype(np.float32) for name, shape in (("weight", (100, 50)), ("bias", (50,)))}
        for _ in range(4)
    ]
    seeded: dict[str, Any] = {"seed": 0} if "seed" in signature(ClientSession).parameters else {}  # in version 0.1
    with recorder:
        server = ServerSession(_presets()["mcm"].make(up=SPEC, down=SPEC), seed=0)
        client = ClientSession(**seeded)
        for sent, trained in (models[:2], models[2:]):
            recorder.again()
            client.receive(server.send("client", sent))
            server.receive("client", client.reply(trained))


def _presets() -> Any:
    try:
        from perbit.protocols import presets
    except ImportError:  # version 0.1
        from perbit import presets
    return presets.PRESETS


def one_compare_round(recorder: Recorder) -> None:
    """Two clients learn a few digits for three rounds, of which the second counts: the last one also writes the results."""
    from perbit.sim.federated import Method, Task
    from perbit.sim.federated.runs import run

    task = Task(data="digits", clients=2, rounds=3, train_samples=200, test_samples=100)
    rounds: list[set[Function]] = []

    def watch(*_: object) -> None:
        rounds.append(recorder.now)
        recorder.again()

    with tempfile.TemporaryDirectory() as folder, recorder:
        run(task, Method("mcm", protocol="mcm", up=SPEC, down=SPEC), 0, Path(folder), watch=watch)
    recorder.before, recorder.now = rounds[0], rounds[1]


def whole_compare(recorder: Recorder) -> None:
    """The demo for one round, from the command line to its files; no page, no figures."""
    from perbit import cli

    options = ["--rounds", "1", "--seeds", "0", "--processes", "1", "--no-report"]
    silent = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(silent), redirect_stderr(silent), recorder:
        cli.main(["compare", *options, "--output", folder])


USES: dict[str, Use] = {
    "one tensor": one_tensor,
    "one session round": one_session_round,
    "one compare round": one_compare_round,
}


# --- what is printed -------------------------------------------------------------------------------------------------


def report(recorders: dict[str, Recorder], with_list: bool) -> Iterator[str]:
    """A table, and if asked for how many functions of which file each use passes through."""
    yield f"{'':20}{'the first time':>24}{'again':>28}"
    for name, recorder in recorders.items():
        yield f"{name:20}{_counts(recorder.before):>24}{_counts(recorder.now):>28}"
    for name, recorder in recorders.items() if with_list else ():
        yield f"\n{name}, again:"
        for file, n in sorted(Counter(file for file, _ in recorder.now).items()):
            functions = sorted(function for other, function in recorder.now if other == file)
            yield f"  {file} ({n}): {', '.join(functions)}"


def _counts(functions: set[Function]) -> str:
    return f"{len({file for file, _ in functions})} files {len(functions):4} functions"


def use_source(folder: Path) -> None:
    """Import perbit from this folder, even where another one is installed for editing."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
    sys.path.insert(0, str(folder.resolve()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also name the functions")
    parser.add_argument("--source", type=Path, help="a folder with another perbit and its compiled kernels")
    parser.add_argument("--whole", action="store_true", help="only count the whole run of `perbit compare`")
    given = parser.parse_args()
    if given.source:
        use_source(given.source)
    import perbit

    if given.whole:
        recorder = Recorder(Path(perbit.__file__).parent, only_functions=False)
        whole_compare(recorder)
        print(f"perbit compare: {_counts(recorder.now).replace('functions', 'pieces of code')}")
        return
    recorders = {name: Recorder(Path(perbit.__file__).parent) for name in USES}
    for name, use in USES.items():
        use(recorders[name])
    print("\n".join(report(recorders, given.list)))
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "--whole"], check=True)  # where nothing is imported yet


if __name__ == "__main__":
    main()
