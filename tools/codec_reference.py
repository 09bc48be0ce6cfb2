"""Write docs/codecs.md from the codecs themselves: what `perbit codecs NAME` prints, for all of them.

python tools/codec_reference.py            writes the page
python tools/codec_reference.py --check    fails if it is not up to date
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

from perbit.coding import registry
from perbit.coding.codec import Codec
from perbit.coding.listing import arguments
from perbit.coding.spec import signature

PAGE = Path(__file__).parent.parent / "docs" / "codecs.md"
KINDS = {
    "floats": ("Codecs of floats", "They take the values of a tensor, or what another codec of floats leaves of them."),
    "symbols": ("Codecs of symbols", "They take the small whole numbers that a quantizer gives: entropy coders come last in a spec."),
    "bytes": ("Codecs of bytes", "They take bytes of any origin."),
    "positions": ("Codecs of positions", "They code where a sparsifier's values are: `topk(0.01, positions=\"golomb\")`."),
}  # fmt: skip
HEAD = """# Codec reference

<!-- written by tools/codec_reference.py; change the docstrings of the codecs instead -->

A spec is a pipeline of codecs, `topk(0.01) | qsgd(15) | rans`: each takes what the one before gives. This page lists all of them
with their parameters; `perbit codecs NAME` prints the same.

Which to choose is in [choosing.md](choosing.md), what each writes in [format.md](format.md), where each comes from in
[bibliography.md](bibliography.md). A codec of your own: [extending.md](extending.md).
"""


def page() -> str:
    """The whole page."""
    found = sorted((cls for cls in registry.classes().values() if cls.wire_id), key=lambda cls: cls.name)
    parts = [HEAD]
    for kind, (title, said) in KINDS.items():
        of_kind = [cls for cls in found if cls.takes == kind]
        if of_kind:
            names = ", ".join(f"[`{cls.name}`](#{cls.name})" for cls in of_kind)
            parts += [f"## {title}\n\n{said}\n\n{names}.\n", *map(entry, of_kind)]
    return "\n".join(parts)


def entry(cls: type[Codec]) -> str:
    """One codec: how it is called, what it does, its parameters and examples."""
    lines = [f"### {cls.name}", "", f"`{signature(cls)}`: {cls.takes} → {cls.gives}", "", description(cls)]
    if parameters := arguments(cls):
        lines += ["", "| parameter | |", "| --- | --- |"]
        lines += [f"| `{name}` | {in_a_cell(said)} |" for name, said in parameters.items()]
    if cls.examples:
        lines += ["", "Examples: " + ", ".join(f"`{example}`" for example in cls.examples)]
    return "\n".join([*lines, ""])


def description(cls: type[Codec]) -> str:
    """The docstring without its arguments; paragraphs stay, code stays code."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")[0].strip()
    return "\n\n".join(
        paragraph if ">>>" not in paragraph else f"```python\n{paragraph}\n```" for paragraph in text.split("\n\n")
    )


def in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the page is another")
    if parser.parse_args().check:
        if PAGE.read_text("utf-8") != page():
            print("docs/codecs.md is not what the codecs say: python tools/codec_reference.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
