"""The kernels behind one name: `K` calls the back end in use (see kernels/README.md for the contract).

>>> from perbit import kernels
>>> kernels.active() in kernels.available()
True
>>> with kernels.using("numpy"):
...     kernels.active()
'numpy'
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from perbit.kernels import reference
from perbit.kernels.api import KernelApi

_native: Any
try:
    _native = importlib.import_module("perbit._native")
except ImportError:  # built without a compiler: numpy carries on, slowly
    _native = None

CHUNK = 1 << 20  # values per independent piece of work; part of the format


def available() -> tuple[str, ...]:
    """The back ends this machine can run, slowest first."""
    if _native is None:
        return ("numpy",)
    return ("numpy", "portable", "avx2") if _native.has_avx2() else ("numpy", "portable")


_KERNELS = [name for name in vars(KernelApi) if not name.startswith("_")]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Active:
    """Has every kernel of the back end in use as an attribute of its own: looking one up costs nothing."""

    name: str

    def select(self, name: str) -> None:
        if name not in available():
            raise ValueError(f"kernel back end {name!r} is not available here; choose one of {', '.join(available())}")
        if name != "numpy":
            _native.set_backend(name)
        self.name, backend = name, reference if name == "numpy" else _native
        self.__dict__.update({kernel: getattr(backend, kernel) for kernel in _KERNELS})


def fuses() -> bool:
    """Whether what compiled back ends do in one call is done so."""
    return _fusing and _active.name != "numpy"


@contextmanager
def unfused() -> Iterator[None]:
    """Call single kernels within a with-block: the same results, and every step of the way can be seen or replaced."""
    global _fusing
    before, _fusing = _fusing, False
    try:
        yield
    finally:
        _fusing = before


def native() -> Any:
    """The compiled module, for calls that no single kernel makes."""
    return _native


def fused(function: _Function) -> _Function:
    """A function made of single kernels that compiled back ends have as one call of the same name: same arguments, same results.

    The function itself says what the call does, and does it where nothing is compiled.
    """

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return (getattr(_native, function.__name__) if fuses() else function)(*arguments)

    return cast(_Function, call)


def composed(function: _Function) -> _Function:
    """A fused function as it is made of single kernels, whatever the back end: for large work on several threads."""
    return cast(_Function, function.__wrapped__)  # type: ignore[attr-defined]


_fusing = hasattr(_native, "decode_tensor")  # a module that was built before has kernels only
_active = _Active()
_active.select(os.environ.get("PERBIT_KERNELS") or available()[-1])
K = cast(KernelApi, _active)


def active() -> str:
    """The name of the back end in use."""
    return _active.name


def use(name: str) -> None:
    """Switch to the back end `name` ("numpy", "portable" or "avx2"); results never change, only speed."""
    _active.select(name)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Use a back end within a with-block."""
    before = active()
    use(name)
    try:
        yield
    finally:
        use(before)
