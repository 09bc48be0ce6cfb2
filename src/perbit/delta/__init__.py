"""What leads from one model to another, as a file to ship: exact by default, or coded by a spec. See docs/deltas.md.

>>> import numpy as np
>>> old = {"w": np.linspace(-1, 1, 5000, dtype=np.float32)}
>>> new = {"w": old["w"] * np.float32(1.0001)}
>>> delta = diff(old, new)
>>> len(delta) < old["w"].nbytes / 2, bool((apply(old, delta)["w"] == new["w"]).all())
(True, True)
"""

from perbit.delta.inspection import inspect, is_delta
from perbit.delta.message import DeltaError, about, apply, diff

__all__ = ["DeltaError", "about", "apply", "diff", "inspect", "is_delta"]
