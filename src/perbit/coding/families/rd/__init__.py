"""`rd`: low rank, a trellis quantizer, and one exchange rate of error against bits. docs/rd.md says how it works and what each part is worth."""

from perbit.coding.families.rd.codec import RateDistortion
from perbit.coding.families.rd.tensor import Tensor

__all__ = ["RateDistortion", "Tensor"]
