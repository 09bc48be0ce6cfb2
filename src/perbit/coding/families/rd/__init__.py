"""`rd`: low rank, a trellis quantizer, and one exchange rate of error against bits. docs/rd.md says how it works and what each part is worth."""

from perbit.coding.families.rd.codec import RateDistortion

__all__ = ["RateDistortion"]
