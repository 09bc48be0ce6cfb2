"""Decodes every frame of a folder under the default limits and reports as JSON what became of it: `python -m attacks.spend FOLDER`.

A process of its own: the peak of the resident set never falls, and making the frames takes memory too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import perbit
from attacks.measure import peak_rss
from attacks.targets import read
from perbit import testing


def main(folder: Path) -> None:
    for spec in testing.specs():  # whatever is loaded on first use
        perbit.decode(perbit.encode(np.zeros(100, np.float32), spec))
    paths = sorted(folder.iterdir())
    errors: dict[str, str] = {}
    start = peak = peak_rss()
    culprit = ""
    for path in paths:
        try:
            read(path.read_bytes())
        except Exception as error:  # the test says which are allowed
            errors[path.name] = f"{type(error).__name__}: {error}"
        if peak_rss() > peak:
            peak, culprit = peak_rss(), path.name
    print(json.dumps({"frames": len(paths), "errors": errors, "rss_growth": peak - start, "culprit": culprit}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
