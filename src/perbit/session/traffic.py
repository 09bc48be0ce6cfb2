"""What an engine counts: bytes that went, and what they would have been."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Traffic:
    """Payload bytes so far (`len` of frames, resyncs included, and of tensors sent as they are), and what all is plain.

    >>> print(Traffic(down_bytes=10, up_bytes=5, plain_down_bytes=100, plain_up_bytes=400))
    down 10 bytes (10.0 x smaller), up 5 bytes (80.0 x smaller), 0 resyncs, 0 updates dropped
    """

    down_bytes: int = 0
    up_bytes: int = 0
    plain_down_bytes: int = 0
    plain_up_bytes: int = 0
    n_resyncs: int = 0
    n_dropped: int = 0

    def ratios(self) -> dict[str, float]:
        """How many times smaller each direction is; 0 where nothing went."""
        pairs = {"down": (self.plain_down_bytes, self.down_bytes), "up": (self.plain_up_bytes, self.up_bytes)}
        return {f"{way}_ratio": round(plain / max(sent, 1), 2) for way, (plain, sent) in pairs.items()}

    def summary(self) -> dict[str, float]:
        """All of it as plain numbers, for logs and metadata."""
        return {**asdict(self), **self.ratios()}

    def __str__(self) -> str:
        ratios = self.ratios()
        return (
            f"down {self.down_bytes:,} bytes ({ratios['down_ratio']:.1f} x smaller), "
            f"up {self.up_bytes:,} bytes ({ratios['up_ratio']:.1f} x smaller), "
            f"{self.n_resyncs} resyncs, {self.n_dropped} updates dropped"
        )
