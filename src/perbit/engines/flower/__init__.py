"""perbit in Flower: one line at the server, one line at the client, and any strategy in between.

    app = ClientApp(mods=[perbit_mod()])

    strategy.start(grid=CompressedGrid(grid), initial_arrays=..., ...)

docs/engines.md tells the rest: which protocols, what happens when a node restarts, which metrics there are.
"""

from perbit import extras

try:
    from perbit.engines.flower.grid import CompressedGrid
    from perbit.engines.flower.mod import perbit_mod
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.engines.flower") from error
from perbit.session import Traffic

__all__ = ["CompressedGrid", "Traffic", "perbit_mod"]
