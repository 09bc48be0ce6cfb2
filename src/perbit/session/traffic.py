"""What an engine counts: bytes that went, and what they would have been."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Traffic:
    """Payload bytes: `len` of the frames, resyncs included, and of tensors sent as they are; and what all is plain.

    Args:
        down_bytes, up_bytes: what went.
        plain_down_bytes, plain_up_bytes: the same tensors in the dtypes that were agreed with the first model.
        n_resyncs: how often a client was sent the whole model again.
        n_dropped: answers that were of no use: a client that failed or diverged, a frame that could not be read.
        n_too_large: those of them that were left out for their norm.
        n_stale: answers to a message that nobody waited for any more; they change nothing.

    >>> print(Traffic(down_bytes=10, up_bytes=5, plain_down_bytes=100, plain_up_bytes=400))
    down 10 bytes (10.0 x smaller), up 5 bytes (80.0 x smaller), 0 resyncs, 0 answers dropped, 0 stale
    """

    down_bytes: int = 0
    up_bytes: int = 0
    plain_down_bytes: int = 0
    plain_up_bytes: int = 0
    n_resyncs: int = 0
    n_dropped: int = 0
    n_stale: int = 0
    n_too_large: int = 0

    @property
    def ratio(self) -> float:
        """How many times smaller all of it is; 1 if nothing went."""
        sent = self.down_bytes + self.up_bytes
        return (self.plain_down_bytes + self.plain_up_bytes) / sent if sent else 1.0

    def ratios(self) -> dict[str, float]:
        """How many times smaller each direction is; 0 where nothing went."""
        pairs = {"down": (self.plain_down_bytes, self.down_bytes), "up": (self.plain_up_bytes, self.up_bytes)}
        return {f"{way}_ratio": round(plain / max(sent, 1), 2) for way, (plain, sent) in pairs.items()}

    def since(self, before: Traffic) -> Traffic:
        """What came to it after `before`."""
        earlier = asdict(before)
        return Traffic(**{name: value - earlier[name] for name, value in asdict(self).items()})

    def summary(self) -> dict[str, float]:
        """All of it as plain numbers, for logs and metadata."""
        return {**asdict(self), **self.ratios()}

    def __str__(self) -> str:
        down = _said("down", self.down_bytes, self.plain_down_bytes)
        up = _said("up", self.up_bytes, self.plain_up_bytes)
        return f"{down}, {up}, {self.n_resyncs} resyncs, {self.n_dropped} answers dropped, {self.n_stale} stale"


def _said(way: str, sent: int, plain: int) -> str:
    """Without a ratio where no tensors went, but acknowledgements, say."""
    return f"{way} {sent:,} bytes" + (f" ({plain / sent:.1f} x smaller)" if plain and sent else "")
