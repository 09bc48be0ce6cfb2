"""The papers' models: `perbit.sim.models.build(NAME, info)` builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def count(model: torch.nn.Module, moving_statistics: bool = False) -> int:
    """Trainable parameters; with `moving_statistics`, batch norm's running means and variances too (Keras counts them)."""
    n = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if moving_statistics:
        n += sum(b.numel() for b in model.buffers() if b.is_floating_point())
    return n
