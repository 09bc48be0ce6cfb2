"""The command line. A user's mistake is one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import perbit
from perbit import extras, plugins
from perbit.commands.common import EXIT_OK, EXIT_STOPPED, EXIT_USAGE
from perbit.errors import PerbitError, Stopped
from perbit.printing import printable

# Each command is a module of perbit.commands, loaded only when it is called.
COMMANDS = {
    "compare": "train a federated model with several methods and show what each bit buys",
    "init": "write a comparison and a Python module for data and code of your own",
    "train": "train a federated model with one method",
    "tune": "search the spec with the best accuracy under a byte budget",
    "codecs": "list every codec with its parameters",
    "encode": "encode the arrays of a file as one frame",
    "decode": "decode a frame back into arrays",
    "diff": "write what leads from one model file to another",
    "apply": "make the new model from the old one and a delta",
    "plan": "say which tensor of a model gets which codec, and its bytes",
    "inspect": "say what a frame holds and where its bytes go",
    "bench": "measure kernels and codecs as ratios to memcpy and to their peers",
    "fit": "fit normal, Laplace and GenNorm to every tensor of a file",
    "rd": "distortion against real bits of many specs, beside the R(D) bound",
    "budget": "find the ? of a spec so that the frame fills a budget",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it went."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = _parser(arguments).parse_args(arguments)
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except PerbitError as error:
        print("\n".join(map(printable, f"perbit: {_for_the_shell(str(error))}".split("\n"))), file=sys.stderr)
        return EXIT_STOPPED if isinstance(error, Stopped) else EXIT_USAGE
    except ImportError as error:
        said = extras.missing(error)
        if said is None:
            raise
        print(f"perbit: {said}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("perbit: stopped", file=sys.stderr)
        return EXIT_STOPPED
    except BrokenPipeError:  # the reader of a pipe went away, as `perbit codecs | head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes when it ends
        return EXIT_OK


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="perbit", description="Gradients and model updates as the fewest real bytes.")
    parser.add_argument("--version", action="version", version=f"perbit {perbit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    asked = next((word for word in arguments if not word.startswith("-")), "")
    known = COMMANDS if asked in COMMANDS else COMMANDS | _others()
    if asked and asked not in known:
        raise PerbitError(plugins.unknown("command", asked, COMMANDS))
    for name, summary in known.items():
        command = commands.add_parser(name, help=summary)
        if name == asked:
            module = _module(name)
            command.description = module.__doc__
            module.add_options(command)
            command.set_defaults(run=module.run)
    return parser


def _for_the_shell(text: str) -> str:
    """Advice to pass an argument of Python names the option instead.

    >>> _for_the_shell("above the limit of 10; pass max_values=1000 to allow it")
    'above the limit of 10; pass --max-values 1000 to allow it'
    """
    return re.sub(r"\bpass (max_\w+)=(\w+)", lambda found: f"pass --{found[1].replace('_', '-')} {found[2]}", text)


def _others() -> dict[str, str]:
    """The commands of other packages; nothing is loaded to list them."""
    return {name: f"comes from {owner}" for name, owner in plugins.offered("command").items() if name not in COMMANDS}


def _module(name: str) -> Any:
    return importlib.import_module(f"perbit.commands.{name}") if name in COMMANDS else plugins.find("command", name)


if __name__ == "__main__":
    raise SystemExit(main())
