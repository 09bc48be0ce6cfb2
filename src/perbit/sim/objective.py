"""What training minimises and what a test reports, by kind of data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from perbit.sim.data.dataset import Kind

N_CANDIDATES = 100  # ratings: each user's test block is one positive item and 99 others
TOP = 10


def loss(kind: Kind, outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per sample (per symbol for text), averaged; for ratings the logistic loss of liked or not."""
    from torch.nn import functional

    if kind == "ratings":
        return functional.binary_cross_entropy_with_logits(outputs, y.float())
    if kind == "text":
        return functional.cross_entropy(outputs.flatten(0, 1), y.flatten())
    return functional.cross_entropy(outputs, y)


def n_right(kind: Kind, outputs: Tensor, y: Tensor) -> tuple[int, int]:
    """(right, all): symbols or samples predicted right; for ratings the hits at 10 over whole blocks of 100 candidates.

    The divisions of a test set into batches must respect the blocks: use multiples of 100.
    """
    if kind == "ratings":
        scores = outputs.reshape(-1, N_CANDIDATES)  # the positive item is the first of its block
        rank = (scores[:, 1:] >= scores[:, :1]).sum(dim=1)
        return int((rank < TOP).sum()), len(scores)
    return int((outputs.argmax(dim=-1) == y).sum()), y.numel()
