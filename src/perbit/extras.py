"""Which extra of perbit brings which package: whoever lacks one is told what to install."""

from __future__ import annotations

EXTRAS = {
    "torch": "sim",
    "sklearn": "sim",
    "threadpoolctl": "sim",
    "safetensors": "files",
    "ml_dtypes": "files",
    "matplotlib": "report",
    "rich": "report",
    "scipy": "report",
    "flwr": "flower",
    "nvflare": "nvflare",
    "triton": "triton",
    "transformers": "huggingface",
    "ray": "ray",
    "torchft": "torchft",
}


def missing(error: ImportError, what: str = "this") -> str | None:
    """A sentence about a package of an extra that is not installed; None if the error is about something else.

    >>> missing(ModuleNotFoundError("No module named 'flwr'", name="flwr.app"))
    'this needs the package flwr: pip install "perbit[flower]"'
    """
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS or not isinstance(error, ModuleNotFoundError):
        return None
    extra = "torch" if package == "torch" and what.startswith("perbit.") else EXTRAS[package]
    return f'{what} needs the package {package}: pip install "perbit[{extra}]"'


def explained(error: ModuleNotFoundError, what: str) -> ModuleNotFoundError:
    """The same error, with what to install."""
    return ModuleNotFoundError(missing(error, what) or str(error), name=error.name)
