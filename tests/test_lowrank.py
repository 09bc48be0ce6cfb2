"""`lowrank`: the kernel, hand-worked matrices, how near it comes to the best approximation, costs, error feedback, attacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

import perbit
from numeric_backends import SPECIAL, fails_on_all, filled, normal, on_all, same_bits
from perbit.coding.codec import as_pipeline
from perbit.coding.families import lowrank
from perbit.coding.families.lowrank import MAX_RANK
from perbit.coding.families.modelled import FLOAT_MAX
from perbit.coding.values import Known, Recall
from perbit.errors import DecodeError, SpecError
from perbit.kernels import K
from perbit.torch.collective.coding import FrameForm


def around(x: np.ndarray, spec: str, seed: int = 0) -> np.ndarray:
    return perbit.decode(perbit.encode(x, spec, seed=seed))


def left_over(x: np.ndarray, y: np.ndarray) -> float:
    wide = x.astype(np.float64)
    return float(((wide - y) ** 2).sum() / (wide**2).sum())


def noisy_product(rows: int, columns: int, rank: int, noise: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    return (signal + noise * rng.normal(size=(rows, columns))).astype(np.float32)


# --- the kernel


def multiplied_out(pairs: np.ndarray, rows: int, columns: int) -> np.ndarray:
    return on_all(
        lambda: filled(np.float32, rows * columns, lambda out: K.multiply_pairs(pairs, rows, columns, out))
    ).reshape(rows, columns)


def test_pairs_are_multiplied_out_by_hand() -> None:
    """(1, 2) × (3, 4, 5) + (-1, 0.5) × (2, 0, 4), one pair after the other: left, then right."""
    pairs = np.array([1, 2, 3, 4, 5, -1, 0.5, 2, 0, 4], np.float32)
    assert multiplied_out(pairs, 2, 3).tolist() == [[1, 4, 1], [7, 8, 12]]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 257), (300, 7), (5, 1030)])
def test_sums_are_made_in_float64_and_saturate_on_every_back_end(rows: int, columns: int) -> None:
    for pairs in (normal(4 * (rows + columns)), np.resize(SPECIAL, 4 * (rows + columns))):
        each = pairs.astype(np.float64).reshape(4, -1)
        exact = np.clip(each[:, :rows].T @ each[:, rows:], -FLOAT_MAX, FLOAT_MAX)
        assert np.allclose(multiplied_out(pairs, rows, columns), exact, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("count", "rows", "columns"), [(0, 3, 5), (1, 1, 1), (4, 6, 300), (130, 5, 97), (3, 9, 2100)])
def test_products_are_added_as_by_axpy(count: int, rows: int, columns: int) -> None:
    before = normal(rows * columns, seed=5)

    def added(out: np.ndarray, pairs: np.ndarray) -> None:
        out[:] = before
        K.axpy_pairs(out, pairs, rows, columns, -0.3)

    for pairs in (normal(count * (rows + columns)), np.resize(SPECIAL, count * (rows + columns))):
        expected = before.copy()
        K.axpy(expected, multiplied_out(pairs, rows, columns).reshape(-1), -0.3)
        found = on_all(lambda pairs=pairs: filled(np.float32, before.size, lambda out: added(out, pairs)))
        assert same_bits(found, expected)


def there_and_back(matrix: np.ndarray, columns: int, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    there, back = np.empty(matrix.size // columns * (start.size // columns), np.float32), np.empty_like(start)
    K.there_and_back(matrix, columns, start, there, back)
    return there, back


def test_a_pass_there_and_back_by_hand() -> None:
    """The rows (1, 2), (3, 4), (5, 6) times (1, -1) are -1 each; their sum is (-9, -12)."""
    there, back = on_all(lambda: there_and_back(np.arange(1, 7, dtype=np.float32), 2, np.array([1, -1], np.float32)))
    assert there.tolist() == [-1, -1, -1]
    assert back.tolist() == [-9, -12]


@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(1, 1, 1), (4, 8, 4), (5, 9, 3), (11, 100, 6), (303, 33, 8), (3, 7, 0), (0, 5, 2)]
)
def test_passes_are_the_same_on_every_back_end(rows: int, columns: int, count: int) -> None:
    matrix, start = normal(rows * columns), normal(count * columns, seed=2)
    there, back = on_all(lambda: there_and_back(matrix, columns, start))
    wide, vectors = matrix.astype(np.float64).reshape(rows, columns), start.astype(np.float64).reshape(count, columns)
    assert np.allclose(there.reshape(count, rows), vectors @ wide.T, rtol=1e-4, atol=1e-4)
    assert np.allclose(back.reshape(count, columns), vectors @ wide.T @ wide, rtol=1e-4, atol=1e-3)


def test_wrong_lengths_are_refused_by_the_kernel() -> None:
    out = np.zeros(6, np.float32)
    fails_on_all(lambda: K.multiply_pairs(np.ones(9, np.float32), 2, 3, out), "whole")
    fails_on_all(lambda: K.multiply_pairs(np.ones(10, np.float32), 2, 4, out), "rows times columns")
    fails_on_all(lambda: K.multiply_pairs(np.ones(10, np.float32), 0, 6, out), "rows times columns")
    fails_on_all(lambda: K.axpy_pairs(out, np.ones(9, np.float32), 2, 3, 1.0), "whole")
    fails_on_all(lambda: K.axpy_pairs(out, np.ones(10, np.float32), 2, 4, 1.0), "rows times columns")
    x = np.ones(9, np.float32)
    for n_matrix, n_start, n_there, n_back in ((7, 6, 4, 6), (6, 7, 4, 6), (6, 6, 5, 6), (6, 6, 4, 5)):
        fails_on_all(
            lambda a=n_matrix, b=n_start, c=n_there, d=n_back: K.there_and_back(x[:a], 3, x[:b], out[:c], out[:d])
        )
    assert not out.any()


# --- the codec


def test_a_product_of_two_vectors_comes_back() -> None:
    """σ = |(3, 4, 0)| · |(1, 2, 2)| = 15, and both vectors of the pair are sent with the same root mean square: √(15/√9) = √5."""
    x = np.outer([3, 4, 0], [1, 2, 2]).astype(np.float32)
    frame = perbit.encode(x, "lowrank(1)")
    assert np.allclose(perbit.decode(frame), x, atol=1e-6)
    wide = np.kron(x, np.ones((1, 4), np.float32))  # four times as wide: σ = 30, root mean square √(30/√36) = √5 again
    sent = np.abs(np.frombuffer(perbit.encode(wide, "lowrank(1)")[-4 * 15 - 4 : -4], "<f4"))
    assert np.allclose(sent[:3], np.sqrt(5) * np.sqrt(3) * np.array([0.6, 0.8, 0]), atol=1e-5)
    assert np.allclose(sent[3:], np.sqrt(5) * np.sqrt(3) * np.repeat([1, 2, 2], 4) / 3, atol=1e-5)


def test_the_largest_singular_values_are_kept() -> None:
    diagonal = np.diag(np.array([1, 5, 3, 2, 0.5, 4], np.float32))
    assert np.allclose(around(diagonal, "lowrank(2)"), np.diag([0, 5, 0, 0, 0, 4]), atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "share"), [((40, 300), 1 - 1e-6), ((300, 40), 1 - 1e-6), ((256, 256), 1 - 1e-6), ((300, 301), 0.95)]
)
def test_it_is_the_best_approximation_or_near_it(shape: tuple[int, int], share: float) -> None:
    """Up to 256 rows or columns exactly; beyond that nearly, even of pure noise, whose singular values hardly differ."""
    for x in (noisy_product(*shape, rank=3, noise=0.5), noisy_product(*shape, rank=1, noise=20)):
        strengths = np.linalg.svd(x.astype(np.float64), compute_uv=False) ** 2
        best = strengths[:5].sum() / strengths.sum()
        assert share * best <= 1 - left_over(x, around(x, "lowrank(5)")) <= best * (1 + 1e-6)


def test_dimensions_behind_the_first_are_columns() -> None:
    x = noisy_product(16, 72, 2, 0.1)
    as_matrix = around(x, "lowrank(2)")
    assert np.array_equal(around(x.reshape(16, 8, 3, 3), "lowrank(2)"), as_matrix.reshape(16, 8, 3, 3))


@pytest.mark.parametrize("shape", [(100,), (), (0, 3), (4, 5), (1, 50), (2, 9, 1)])
def test_what_would_not_become_smaller_is_passed_on(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    assert np.array_equal(around(x, "lowrank(3)"), x)


def test_what_it_costs() -> None:
    x = noisy_product(128, 1152, 3, 1)
    assert len(perbit.encode(x, "lowrank(4) | fp16")) == pytest.approx(4 * (128 + 1152) * 2, abs=60)


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e30, 3e38])
def test_every_size_of_numbers(scale: float) -> None:
    x = (np.clip(noisy_product(30, 40, 2, 0), -1, 1).astype(np.float64) * scale).astype(np.float32)
    y = around(x, "lowrank(20)")
    assert np.isfinite(y).all()
    assert np.abs(x.astype(np.float64) - y).max() <= 0.2 * np.abs(x).max() + 2e-45
    assert not around(np.zeros((30, 40), np.float32), "lowrank(3)").any()


def test_products_beyond_float32_stay_finite() -> None:
    corner = np.zeros((30, 30), np.float32)
    corner[:2, :2] = np.finfo(np.float32).max
    assert np.isfinite(around(corner, "lowrank(1) | fp(5, 2)")).all()


def test_error_feedback_sends_what_repeats_at_once() -> None:
    """A client that says the same in every round under noise of twice its energy: hardly any of it waits; with top-k, at more bytes, much does."""
    rng = np.random.default_rng(3)
    signal = np.outer(rng.choice([-1.0, 1.0], 60), rng.choice([-1.0, 1.0], 80))
    noise = 2**0.5 * rng.normal(size=(100, *signal.shape))

    def waiting(spec: str) -> tuple[float, int]:
        """How many rounds' signal the memory holds in the end, and the bytes of a message."""
        memory, n_bytes = np.zeros(signal.shape, np.float32), 0
        for t, disturbance in enumerate(noise):
            memory += (signal + disturbance).astype(np.float32)
            frame = perbit.encode(memory, spec, seed=t)
            memory -= perbit.decode(frame)
            n_bytes = len(frame)
        return float((memory * signal).sum() / (signal**2).sum()), n_bytes

    (low, low_bytes), (top, top_bytes) = waiting("lowrank(1) | fp16"), waiting("topk(0.07) | uniform(3) | rans")
    assert low_bytes <= top_bytes
    assert low < 1.5
    assert top > 4


# --- from one message to the next


def coded_with_feedback(gradients: Iterable[np.ndarray], rank: int, *, recalls: bool) -> tuple[np.ndarray, float]:
    """The memory in the end, and the mean of its energy over the messages."""
    memory, recall, energies = None, Recall() if recalls else None, []
    for step, gradient in enumerate(gradients):
        if memory is None:
            form = FrameForm.of([("w", gradient.shape, as_pipeline(perbit.codec(f"lowrank({rank})")))])
            memory = np.zeros_like(gradient)
        memory += gradient
        frame, _ = form.encode([memory.reshape(-1)], [step], step, [Known(recall=recall)])
        memory -= perbit.loads(frame)["w"]
        energies.append(float((memory.astype(np.float64) ** 2).sum()))
    assert memory is not None
    return memory, float(np.mean(energies[len(energies) // 2 :]))


def drifting(rows: int, columns: int, seed: int) -> Iterator[np.ndarray]:
    """Gradients of which some directions, of many strengths, come back for a while."""
    rng = np.random.default_rng(seed)
    strengths = 0.8 ** np.arange(24)[:, None]
    left, right = rng.normal(size=(24, rows)), rng.normal(size=(24, columns))
    for _ in range(30):
        left, right = (0.9 * x + 0.436 * rng.normal(size=x.shape) for x in (left, right))
        amounts = rng.normal(size=(24, 1)) * strengths
        yield (left.T @ (amounts * right) + 0.3 * rng.normal(size=(rows, columns))).astype(np.float32)


@pytest.mark.parametrize("shape", [(100, 180), (290, 300)])
def test_with_error_feedback_half_the_passes_do(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that begins where the last one ended leaves no more in the memory than one that begins anew, or than exact decomposition."""
    passes = []
    there_and_back = lowrank._there_and_back
    monkeypatch.setattr(lowrank, "_there_and_back", lambda *given: passes.append(0) or there_and_back(*given))
    kept = {False: [], True: []}
    taken = {}
    for recalls, energies in kept.items():
        passes.clear()
        energies += [coded_with_feedback(drifting(*shape, seed), 3, recalls=recalls)[1] for seed in range(3)]
        taken[recalls] = len(passes)
    assert taken[True] == 3 * (4 + 29 * 2)
    assert taken[False] == (3 * 30 * 4 if min(shape) > 256 else 0)
    assert np.mean(kept[True]) <= 1.05 * np.mean(kept[False])


def test_what_is_new_is_found_wherever_it_lies() -> None:
    """Nothing that is recalled has a part in the other half, where something begins to repeat."""
    rng = np.random.default_rng(0)
    news = np.zeros((200, 200), np.float32)
    news[100:, 100:] = np.outer(rng.normal(size=100), rng.normal(size=100))

    def gradients() -> Iterator[np.ndarray]:
        for step in range(40):
            known = np.zeros((200, 200), np.float32)
            known[:100, :100] = rng.normal(size=(100, 100))
            yield known if step < 10 else known + news

    memory, _ = coded_with_feedback(gradients(), 2, recalls=True)
    assert (memory * news).sum() < 3 * (news**2).sum()  # no more than three of thirty wait


def test_the_same_recall_gives_the_same_frame_and_none_a_frame_of_its_own() -> None:
    form = FrameForm.of([("w", (90, 110), as_pipeline(perbit.codec("lowrank(2)")))])
    x = [noisy_product(90, 110, 6, 1.0, seed).reshape(-1) for seed in range(2)]
    recall = Recall()
    form.encode([x[0]], [0], 0, [Known(recall=recall)])
    assert recall.found is not None
    copies = [Recall(recall.found.copy()) for _ in range(2)]
    frames = [form.encode([x[1]], [1], 1, [Known(recall=copy)])[0] for copy in copies]
    assert frames[0] == frames[1] != form.encode([x[1]], [1], 1)[0]
    assert np.array_equal(copies[0].found, copies[1].found)


def test_what_does_not_fit_is_not_recalled() -> None:
    """As from a checkpoint of another model, or of another number of ranks."""
    form = FrameForm.of([("w", (90, 110), as_pipeline(perbit.codec("lowrank(2)")))])
    x = noisy_product(90, 110, 6, 1.0).reshape(-1)
    new, other = Recall(), Recall(np.ones((4, 7), np.float32))
    assert form.encode([x], [0], 0, [Known(recall=new)])[0] == form.encode([x], [0], 0, [Known(recall=other)])[0]
    assert np.array_equal(new.found, other.found)


def test_few_directions_need_no_recall() -> None:
    """There is nothing left over that could be recalled, and nothing is made up."""
    form = FrameForm.of([("w", (90, 110), as_pipeline(perbit.codec("lowrank(2)")))])
    recall = Recall()
    for step in range(3):
        x = noisy_product(90, 110, 2, 0, seed=step)
        frame, _ = form.encode([x.reshape(-1)], [step], step, [Known(recall=recall)])
        assert np.allclose(perbit.loads(frame)["w"], x, atol=1e-4)
    empty, _ = form.encode([np.zeros(9900, np.float32)], [3], 3, [Known(recall=recall)])
    assert not perbit.loads(empty)["w"].any()


# --- what is refused


def test_bad_parameters_are_refused() -> None:
    for bad in ("lowrank(0)", f"lowrank({MAX_RANK + 1})", "lowrank(1.5)", "lowrank(true)"):
        with pytest.raises(SpecError, match="rank must be 1 to"):
            perbit.codec(bad)


def test_vectors_of_the_wrong_length_are_refused() -> None:
    frame = perbit.encode(noisy_product(30, 40, 2, 0), "lowrank(2)")
    with pytest.raises(DecodeError):
        perbit.decode(frame, expect_shape=(40, 30))
