"""Work that goes on while an engine computes: each job is encoded on one thread and exchanged on another, in the order in which jobs came."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from perbit.torch.collective.buckets import Bucket, BucketGradients
from perbit.torch.collective.devices import Staging
from perbit.torch.collective.reduction import Reduction

Coded = TypeVar("Coded")


class Pipeline:
    """Two threads. After a failure nothing more is exchanged: other ranks wait for what did not go out, and nothing else may take its place."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="perbit-encode")
        self._exchanger = ThreadPoolExecutor(1, thread_name_prefix="perbit-exchange")

    def start(self, encode: Callable[[], Coded], exchange: Callable[[Callable[[], Coded]], None]) -> Future[None]:
        """Start a job. `exchange` is given a function that waits for what `encode` returns."""
        coded = self._encoder.submit(encode)
        return self._exchanger.submit(self._exchange, coded, exchange)

    def average(
        self, buffer: torch.Tensor, bucket: Bucket, step: int, index: int, reduction: Reduction, staging: Staging
    ) -> Future[None]:
        """Start to replace what is in a buffer by its mean over all ranks."""
        traffic, ticket = reduction.group.traffic, staging.begin(buffer)

        def encode() -> tuple[BucketGradients, list[bytes]]:
            gradients = BucketGradients(bucket, staging.fetch(ticket), step, index)
            with traffic.timed("encode"):
                return gradients, reduction.encode(gradients)

        def exchange(coded: Callable[[], tuple[BucketGradients, list[bytes]]]) -> None:
            with staging.returning(ticket):
                gradients, frames = coded()
                with traffic.timed("exchange"):
                    reduction.finish(gradients, frames)

        return self.start(encode, exchange)

    def _exchange(self, coded: Future[Coded], exchange: Callable[[Callable[[], Coded]], None]) -> None:
        def result() -> Coded:
            value = coded.result()
            if self.failure is not None:
                raise self.failure
            return value

        try:
            exchange(result)
        except BaseException as error:
            self.failure = self.failure or error
            raise
