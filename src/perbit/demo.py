"""`make demo`: train a small network on bundled digits, then encode one of its real gradients with a dozen specs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import perbit
from perbit.commands.common import human_bytes

SPECS = (
    "raw",
    "raw | zstd",
    "fp16",
    "bf16",
    "uniform(8) | rans",
    "uniform(4) | rans",
    "qsgd(15) | rans",
    "qsgd(1) | rans",
    "topk(0.1) | fp16",
    "topk(0.01, positions=bitmap) | fp16",
    "topk(0.01) | fp16",
    "topk(0.01) | qsgd(15) | rans",
    "randk(0.01) | fp16",
)


def digits_gradient(steps: int = 200, seed: int = 0) -> tuple[dict[str, Any], float]:
    """Gradients of a small network after some training on 8×8 digits, and its accuracy on held-out ones."""
    import torch
    from sklearn.datasets import load_digits

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x))
    train, held_out = order[:1500], order[1500:]
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        batch = train[torch.randint(len(train), (64,))]
        optimiser.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimiser.step()
    accuracy = (model(x[held_out]).argmax(1) == y[held_out]).float().mean().item()
    return {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}, accuracy


def measure(tensors: dict[str, Any], spec: str) -> dict[str, float]:
    """Encode and decode all tensors; sizes are those of real frames, errors those of what was decoded."""
    start = time.perf_counter()
    frame = perbit.dumps(tensors, spec, seed=0)
    middle = time.perf_counter()
    values = perbit.loads(frame)
    end = time.perf_counter()
    error = sum(float(((values[name] - x) ** 2).sum()) for name, x in tensors.items())
    energy = sum(float((x**2).sum()) for x in tensors.values())
    return {
        "n_bytes": len(frame),
        "relative_error": float(np.sqrt(error / energy)),
        "encode_ms": 1e3 * (middle - start),
        "decode_ms": 1e3 * (end - middle),
    }


def main() -> None:
    """Print the table."""
    print("Training a network on 8×8 digits ...", flush=True)
    gradient, accuracy = digits_gradient()
    n = sum(x.size for x in gradient.values())
    print(f"accuracy {accuracy:.1%}; its gradient has {n:,} values, {human_bytes(4 * n)} as float32\n")
    print(f"{'spec':<38}{'frame':>10}{'bits/value':>12}{'smaller':>10}{'error':>9}{'encode':>10}{'decode':>10}")
    for spec in SPECS:
        measure(gradient, spec)  # warm up tables and caches
        row = measure(gradient, spec)
        print(
            f"{spec:<38}{human_bytes(row['n_bytes']):>10}{8 * row['n_bytes'] / n:>12.3f}{4 * n / row['n_bytes']:>9.1f}x"
            f"{row['relative_error']:>9.4f}{row['encode_ms']:>7.2f} ms{row['decode_ms']:>7.2f} ms"
        )
    print(
        "\nEvery size is the length of real bytes that were decoded again. error = |decoded - gradient| / |gradient|."
    )


if __name__ == "__main__":
    main()
