"""Least squares and logistic regression over N clients: loss, gradients, smoothness, and the solved optimum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Kind = Literal["least_squares", "logistic"]


@dataclass(frozen=True, eq=False)
class Problem:
    """F(w) = mean over clients of F_i(w), each a mean over that client's rows: ½(x·w - y)² or log(1 + exp(-y x·w)).

    >>> problem = Problem("least_squares", np.ones((2, 3, 1)), np.array([[1.0, 1, 1], [3, 3, 3]]))
    >>> problem.optimum.tolist(), problem.loss(problem.optimum)
    ([2.0], 0.5)
    """

    kind: Kind
    x: F64  # clients × rows × features
    y: F64  # clients × rows; ±1 for logistic regression

    @property
    def n_clients(self) -> int:
        return int(self.x.shape[0])

    @property
    def n_rows(self) -> int:
        """Rows of one client."""
        return int(self.x.shape[1])

    @property
    def n_features(self) -> int:
        return int(self.x.shape[2])

    def loss(self, w: F64) -> float:
        """F at w."""
        if self.kind == "least_squares":
            return float(np.mean((self.x @ w - self.y) ** 2) / 2)
        return float(np.mean(np.logaddexp(0, -self.y * (self.x @ w))))

    def gradients(self, points: F64, rows: NDArray[np.int64] | None = None) -> F64:
        """Row i is client i's gradient at points[i], over all its rows or over `rows[i]`."""
        if rows is None and self.kind == "least_squares":
            hessians, targets = self._quadratic
            return np.asarray((hessians @ points[:, :, None])[:, :, 0] - targets)
        x, y = (self.x, self.y) if rows is None else self._batch(rows)
        return _batch_gradients(self.kind, x, y, points)

    def _batch(self, rows: NDArray[np.int64]) -> tuple[F64, F64]:
        flat = (rows + self.n_rows * np.arange(self.n_clients)[:, None]).reshape(-1)
        x = self.x.reshape(-1, self.n_features)[flat]
        return x.reshape(*rows.shape, self.n_features), self.y.reshape(-1)[flat].reshape(rows.shape)

    @cached_property
    def _quadratic(self) -> tuple[F64, F64]:
        """XᵀX/n and Xᵀy/n of every client."""
        transposed = self.x.transpose(0, 2, 1)
        return transposed @ self.x / self.n_rows, (transposed @ self.y[:, :, None])[:, :, 0] / self.n_rows

    @cached_property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of the mean Hessian (a quarter of XᵀX/n for logistic regression)."""
        x = self.x.reshape(-1, self.n_features)
        top = float(np.linalg.eigvalsh(x.T @ x / len(x))[-1])
        return top if self.kind == "least_squares" else top / 4

    @cached_property
    def smoothness_frobenius(self) -> float:
        """An upper bound of L, the mean over clients of the Frobenius norm of XᵀX/n: what the MCM authors' code calls L."""
        norms = [float(np.linalg.norm(x.T @ x)) / len(x) for x in self.x]
        return float(np.mean(norms)) / (1 if self.kind == "least_squares" else 4)

    @cached_property
    def optimum(self) -> F64:
        """A minimiser of F, by the normal equations or by Newton's method."""
        if self.kind == "least_squares":
            hessians, targets = self._quadratic
            return np.asarray(np.linalg.lstsq(hessians.mean(0), targets.mean(0), rcond=None)[0])
        return self._newton()

    def _newton(self, max_iterations: int = 200) -> F64:
        x, y = self.x.reshape(-1, self.n_features), self.y.reshape(-1)
        w, loss = np.zeros(self.n_features), self.loss(np.zeros(self.n_features))
        for _ in range(max_iterations):
            s = _sigmoid(-y * (x @ w))
            gradient = -(x.T @ (s * y)) / len(y)
            hessian = (x.T * (s * (1 - s))) @ x / len(y)
            direction = np.linalg.lstsq(hessian + 1e-12 * np.eye(len(w)), gradient, rcond=None)[0]
            step = 1.0
            while (new := self.loss(w - step * direction)) > loss and step > 1e-10:
                step /= 2
            if loss - new <= 1e-15:
                break
            w, loss = w - step * direction, new
        return w

    @cached_property
    def best_loss(self) -> float:
        """F at the optimum."""
        return self.loss(self.optimum)


def _batch_gradients(kind: Kind, x: F64, y: F64, points: F64) -> F64:
    predicted = np.matmul(x, points[:, :, None])[:, :, 0]
    slope = predicted - y if kind == "least_squares" else -y * _sigmoid(-y * predicted)
    return np.asarray(np.matmul(slope[:, None, :], x)[:, 0, :] / x.shape[1])


def _sigmoid(z: F64) -> F64:
    return np.asarray(1 / (1 + np.exp(np.clip(-z, -500, 500))))
