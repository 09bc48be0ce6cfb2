"""perbit.torch: every dtype and layout comes back as it went in, and frames are those of perbit itself."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import perbit
import perbit.torch as pt
from perbit.coding import arrays

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOATS8 = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
WHOLE = [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip


def values(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if dtype == torch.float8_e8m0fnu:
        x = x.abs()
    return (x.abs() * 3).to(dtype) if dtype in WHOLE else x.to(dtype)


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Bit for bit."""
    copies = [z.detach().clone(memory_format=torch.contiguous_format) for z in (x, y)]
    kinds = (x.dtype, x.shape) == (y.dtype, y.shape)
    return kinds and bytes(copies[0].untyped_storage()) == bytes(copies[1].untyped_storage())


# --- one tensor ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
def test_raw_keeps_every_dtype_bit_for_bit(dtype: torch.dtype) -> None:
    x = values(dtype, 7, 5)
    assert same(pt.decode(pt.encode(x, "raw")), x)


@pytest.mark.parametrize("dtype", FLOATS8, ids=str)
def test_eight_bit_floats_come_back_where_they_are_asked_for(dtype: torch.dtype) -> None:
    x = values(dtype, 7, 5)
    frame = pt.encode(x, "raw | zstd")
    assert same(pt.decode(frame, dtype=dtype), x)
    assert pt.decode(frame).dtype == (torch.float32 if dtype == torch.float8_e8m0fnu else torch.float16)


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOATS8], ids=str)
def test_lossy_codecs_take_all_floats(dtype: torch.dtype) -> None:
    x = values(dtype, 40, 30)
    y = pt.decode(pt.encode(x, "topk(0.1) | qsgd(15) | rans", seed=0), dtype=dtype)
    assert y.dtype == dtype
    assert same(y, pt.decode(pt.encode(x.float(), "topk(0.1) | qsgd(15) | rans", seed=0), dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_frames_are_those_of_perbit_itself(dtype: torch.dtype) -> None:
    x = values(dtype, 40, 30)
    assert pt.encode(x, "qsgd(7) | rans", seed=3) == perbit.encode(x.numpy(), "qsgd(7) | rans", seed=3)


@pytest.mark.parametrize("spec", ["raw", "uniform(4) | rans", "topk(0.2) | fp16"])
def test_bfloat16_frames_are_those_of_ml_dtypes(spec: str) -> None:
    x = values(torch.bfloat16, 40, 30)
    same_values = x.float().numpy().astype(ml_dtypes.bfloat16)
    frame = pt.encode(x, spec, seed=1)
    assert frame == perbit.encode(same_values, spec, seed=1)
    assert np.array_equal(pt.decode(frame).float().numpy(), perbit.decode(frame).astype(np.float32))


def test_bfloat16_needs_no_other_package() -> None:
    code = """
import sys; sys.modules["ml_dtypes"] = None
import torch, perbit.torch as pt
x = torch.randn(40, 30).bfloat16()
for spec in ("raw", "topk(0.2) | fp16"):
    frame = pt.encode(x, spec)
    total = torch.zeros(40, 30)
    pt.decode_add(frame, total)
    assert pt.decode(frame).dtype == torch.bfloat16 and torch.equal(total, pt.decode(frame).float())
assert torch.equal(pt.loads(pt.dumps({"w": x}, "raw"))["w"], x)
model = torch.nn.Linear(40, 30).bfloat16()
pt.ErrorFeedback(model, "topk(0.1)").compress({name: p.detach() for name, p in model.named_parameters()})
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_bfloat16_is_rounded_as_torch_rounds(numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    limit = torch.finfo(torch.bfloat16).max
    rounded = torch.from_numpy(x).to(torch.bfloat16).clamp(-limit, limit)
    assert np.array_equal(arrays.round_to_bf16(x), rounded.view(torch.int16).numpy().view(np.uint16))
    assert np.array_equal(arrays.from_bf16(arrays.round_to_bf16(x)), rounded.float().numpy())


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "every other": lambda x: x[::2, 1::3],
    "expanded": lambda x: x[:1].expand(6, -1),
    "channels last": lambda x: x.reshape(2, 5, 4, 6).contiguous(memory_format=torch.channels_last),
    "a scalar": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
    "with a history": lambda x: x.requires_grad_() * 1 if x.is_floating_point() else x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_any_layout_will_do(dtype: torch.dtype, layout: str) -> None:
    x = LAYOUTS[layout](values(dtype, 20, 12))
    assert same(pt.decode(pt.encode(x, "raw")), x.detach())


def test_a_tensor_is_read_where_it_lies_and_decoded_into_memory_of_its_own() -> None:
    from perbit.torch.tensors import stored

    x = values(torch.float32, 30, 20)
    assert np.shares_memory(stored(x)[1], x.numpy())
    assert np.shares_memory(stored(x.t())[1], x.numpy())
    half = x.bfloat16()
    assert np.shares_memory(stored(half)[1], half.view(torch.int16).numpy())
    pt.decode(pt.encode(x, "raw")).add_(1)  # may be written to, without a warning


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("spec", ["raw", "fp16"])
def test_values_that_are_not_finite_are_refused(dtype: torch.dtype, spec: str, value: float) -> None:
    x = values(torch.float32, 4)
    x[2] = value
    with pytest.raises(perbit.NonFiniteError, match="tensor 'w' holds 1 "):
        pt.encode(x.to(dtype), spec, name="w")


def test_a_bfloat16_frame_with_infinity_is_refused() -> None:
    from perbit.frame.seal import SEAL_BYTES
    from perbit.kernels import K

    frame = bytearray(pt.encode(torch.ones(1, dtype=torch.bfloat16), "raw"))
    frame[-SEAL_BYTES - 2 : -SEAL_BYTES] = b"\x80\x7f"
    frame[-SEAL_BYTES:] = K.crc32c(bytes(frame[:-SEAL_BYTES])).to_bytes(4, "little")
    with pytest.raises(perbit.DecodeError, match="NaN or infinite"):
        pt.decode(bytes(frame))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.ones(3), "got ndarray; perbit itself takes arrays"),
        (lambda: torch.eye(3).to_sparse(), r"is sparse_coo; pass a dense tensor, e.g. x.to_dense\(\)"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), r"x.dequantize\(\)"),
        (lambda: torch.ones(3, device="meta"), "on the meta device and has no values"),
        (lambda: torch.ones(3, dtype=torch.complex64), "dtype complex64; use floats or integers"),
        (lambda: torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "dtype float4_e2m1fn_x2"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_cannot_be_read_is_refused_with_the_way_out(make: Callable[[], torch.Tensor], message: str) -> None:
    x = make()
    with pytest.raises(perbit.EncodeError, match=message):
        pt.encode(x, "raw")
    with pytest.raises(perbit.EncodeError, match=f"tensor 'w'.*{message}"):
        pt.dumps({"w": x}, "raw")


def test_limits_are_those_of_perbit() -> None:
    frame = pt.encode(torch.ones(1000), "fp16")
    with pytest.raises(perbit.LimitError):
        pt.decode(frame, max_values=10)
    with pytest.raises(perbit.DecodeError, match="expected shape"):
        pt.decode(frame, expect_shape=(5,))
    with pytest.raises(perbit.DecodeError, match="agreed were"):
        pt.decode(frame, codecs="raw")


# --- a model ---------------------------------------------------------------------------------------------------------


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 20, 5), nn.BatchNorm2d(20), nn.Flatten(), nn.Linear(80, 60))


def test_a_message_can_be_loaded_by_a_model() -> None:
    model, other = network(0), network(1)
    other.load_state_dict(pt.loads(pt.dumps(model.state_dict(), "raw")))
    assert all(same(x, other.state_dict()[name]) for name, x in model.state_dict().items())


def test_load_into_writes_in_the_dtypes_of_the_model() -> None:
    model, other = network(0), network(1).bfloat16()
    before = {name: x.data_ptr() for name, x in other.state_dict().items()}
    pt.load_into(other, pt.dumps(model.state_dict(), "raw"))
    for name, x in other.state_dict().items():
        assert same(x, model.state_dict()[name].to(x.dtype))
        assert x.data_ptr() == before[name]


def test_load_into_eight_bit_floats() -> None:
    x, out = values(torch.float8_e4m3fn, 9, 9), torch.zeros(9, 9, dtype=torch.float8_e4m3fn)
    pt.load_into({"w": out}, pt.dumps({"w": x}, "raw"))
    assert same(out, x)
    pt.load_into({"w": out}, pt.dumps({"w": torch.full((9, 9), 1e9)}, "raw"))
    assert out.float().max() == 448  # it saturates


def test_load_into_changes_nothing_unless_all_fits() -> None:
    model = network(0)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    good = network(1).state_dict()
    steps = "1.num_batches_tracked"
    for change, match in (
        ({"more": torch.ones(3)}, "'more', which was not expected"),
        ({"3.weight": torch.ones(3)}, "'3.weight': expected shape"),
        ({steps: torch.tensor(1.0)}, f"'{steps}' is torch.float32 in the message and torch.int64 in the model"),
    ):
        with pytest.raises(perbit.DecodeError, match=match):
            pt.load_into(model, pt.dumps({**good, **change}, "raw"))
    part = pt.dumps({"3.bias": good["3.bias"]}, "raw")
    with pytest.raises(perbit.DecodeError, match="lacks tensor"):
        pt.load_into(model, part)
    with pytest.raises(perbit.DecodeError, match=r"use perbit\.decode"):
        pt.load_into(model, pt.encode(torch.ones(3), "raw"))
    assert all(same(x, before[name]) for name, x in model.state_dict().items())
    pt.load_into(model, part, strict=False)
    assert same(model.state_dict()["3.bias"], good["3.bias"])


def test_messages_are_those_of_perbit_itself() -> None:
    tensors = network(0).state_dict()
    plan = perbit.Plan.of("rd(bits=0.5)")
    assert pt.dumps(tensors, plan, seed=2) == perbit.dumps(tensors, plan, seed=2)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(perbit.EncodeError, match=r"by name, e.g. model.state_dict\(\), got list"):
        pt.dumps([torch.ones(3)], "raw")  # type: ignore[arg-type]
    with pytest.raises(perbit.EncodeError, match="expected a module or tensors by name, got int"):
        pt.load_into(3, b"")  # type: ignore[arg-type]


# --- adding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", FLOATS, ids=str)
@pytest.mark.parametrize("held", [*FLOATS, torch.float8_e5m2], ids=str)
def test_decode_add_takes_all_floats(sent: torch.dtype, held: torch.dtype) -> None:
    x, total = values(sent, 40, 30), values(held, 40, 30, seed=1)
    frame = pt.encode(x, "topk(0.1)")
    wide = torch.float64 if held == torch.float64 else torch.float32
    meant = (total.to(wide) + 0.5 * pt.decode(frame).to(wide)).to(held)
    pt.decode_add(frame, total, 0.5)
    assert same(total, meant)


def test_decode_add_to_any_layout_and_to_named_tensors() -> None:
    x = values(torch.float32, 40, 30)
    total = torch.zeros(30, 40).t()
    pt.decode_add(pt.encode(x, "raw"), total)
    assert torch.equal(total, x)
    named = {"a": torch.zeros(40, 30), "b": torch.zeros(40, 30, dtype=torch.bfloat16)}
    pt.decode_add(pt.dumps({"a": x, "b": x.bfloat16()}, "raw"), named, 2.0)
    assert torch.equal(named["a"], 2 * x)
    assert torch.equal(named["b"], (2 * x.bfloat16().float()).bfloat16())


def test_decode_add_works_where_the_tensor_lies() -> None:
    parameter = nn.Parameter(torch.zeros(40, 30))
    pt.decode_add(pt.encode(torch.ones(40, 30), "raw"), parameter)
    assert torch.equal(parameter, torch.ones(40, 30))


def test_decode_add_refuses_what_is_not_floats() -> None:
    with pytest.raises(perbit.EncodeError, match="must be a tensor of floats"):
        pt.decode_add(pt.encode(torch.ones(3), "raw"), torch.zeros(3, dtype=torch.int64))


# --- error feedback --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("spec", ["topk(0.1) | fp16", "rd(bits=0.5)", "sign"])
def test_what_a_frame_leaves_out_comes_later(dtype: torch.dtype, spec: str) -> None:
    """All that was given equals all that came and what the memory holds."""
    shapes = {"w": (40, 30), "b": (30,)}
    compressor = pt.ErrorFeedback({name: torch.zeros(s, dtype=dtype) for name, s in shapes.items()}, spec)
    given = {name: torch.zeros(shape) for name, shape in shapes.items()}
    came = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for step in range(5):
        tensors = {name: values(dtype, *shape, seed=step) for name, shape in shapes.items()}
        decoded = compressor.decompress(compressor.compress(tensors))
        for name in shapes:
            given[name] += tensors[name].float()
            came[name] += decoded[name].float()
    for name, shape in shapes.items():
        kept = compressor.state_dict()["memory"].get(name, torch.zeros(shape)).view(shape)
        assert torch.allclose(came[name] + kept, given[name], atol=1e-4)
    assert compressor.metrics()["memory_norms/w"] > 0


def test_a_loop_of_ones_own_learns() -> None:
    """Two workers in one process: each codes its gradients, and both apply what arrives."""
    torch.manual_seed(0)
    truth, x = torch.randn(60, 40), torch.randn(256, 60)
    models = [nn.Linear(60, 40, bias=False) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    coders = [pt.ErrorFeedback(model, "topk(0.05)", seed=rank) for rank, model in enumerate(models)]
    losses = []
    for _ in range(150):
        frames = []
        for rank, (model, coder) in enumerate(zip(models, coders, strict=True)):
            model.zero_grad()
            part = x[rank::2]
            loss = nn.functional.mse_loss(model(part), part @ truth)
            loss.backward()
            frames.append(coder.compress())
        losses.append(loss.item())
        for model, coder in zip(models, coders, strict=True):
            for frame in frames:
                with torch.no_grad():
                    model.weight -= 1.0 * coder.decompress(frame)["weight"]
    assert losses[-1] < losses[0] / 50
    assert same(models[0].weight, models[1].weight)
    assert coders[0].ratio > 10


@pytest.mark.parametrize("spec", ["topk(0.1) | qsgd(7) | rans", "lowrank(1) | fp16"])
def test_a_resumed_loop_sends_the_same_frames(spec: str) -> None:
    like = {"w": torch.zeros(40, 30)}
    whole, first, second = (pt.ErrorFeedback(like, spec, seed=5) for _ in range(3))
    given = [{"w": values(torch.float32, 40, 30, seed=step)} for step in range(6)]
    frames = [whole.compress(tensors) for tensors in given]
    for tensors in given[:3]:
        first.compress(tensors)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert [second.compress(tensors) for tensors in given[3:]] == frames[3:]


@pytest.mark.parametrize("spec", ["topk(0.1)", "lowrank(1)"])
def test_a_step_that_fails_leaves_the_memory_as_it_was(spec: str) -> None:
    compressor = pt.ErrorFeedback({"v": torch.zeros(40, 30), "w": torch.zeros(40, 30)}, spec)
    compressor.compress({name: values(torch.float32, 40, 30, seed=1) for name in "vw"})
    before = compressor.state_dict()
    with pytest.raises(perbit.NonFiniteError, match="tensor 'w'"):
        compressor.compress({"v": torch.ones(40, 30), "w": torch.full((40, 30), torch.nan)})
    after = compressor.state_dict()
    assert after["step"] == before["step"] == 1
    for kept in ("memory", "recall"):
        assert all(torch.equal(after[kept][name], x) for name, x in before[kept].items())
    assert set(before["recall"]) == (set("vw") if "lowrank" in spec else set())


def test_unbiased_codecs_have_a_memory_only_if_it_is_asked_for() -> None:
    like = {"w": torch.zeros(40, 30)}
    for decay, names in ((None, []), (0.9, ["w"])):
        compressor = pt.ErrorFeedback(like, "qsgd(7) | rans", decay=decay)
        compressor.compress({"w": values(torch.float32, 40, 30)})
        assert list(compressor.state_dict()["memory"]) == names


def test_plans_that_look_at_the_whole_model_work() -> None:
    model = {"a": values(torch.float32, 40, 30), "b": values(torch.float32, 50, 30, seed=1)}
    for plan in (perbit.Plan.of("topk(0.1)", whole_model=True), perbit.Budget.of("topk(?)", n_bits=8000)):
        compressor = pt.ErrorFeedback(model, plan)
        assert set(compressor.decompress(compressor.compress(model))) == {"a", "b"}


def test_unused_parameters_count_as_zeros() -> None:
    model = nn.ModuleDict({"used": nn.Linear(40, 30), "unused": nn.Linear(40, 30)})
    compressor = pt.ErrorFeedback(model, "topk(0.1)")
    with pytest.raises(perbit.EncodeError, match=r"call backward\(\) first"):
        compressor.compress()
    model["used"](torch.ones(1, 40)).sum().backward()
    decoded = compressor.decompress(compressor.compress())
    assert decoded["unused.weight"].count_nonzero() == 0
    assert decoded["used.weight"].count_nonzero() == 120


def test_what_does_not_fit_the_model_is_refused() -> None:
    compressor = pt.ErrorFeedback({"w": torch.zeros(40, 30)}, "topk(0.1)")
    for tensors, match in (
        ({"v": torch.zeros(40, 30)}, "'v' is not in the model"),
        ({}, "'w' was not given"),
        ({"w": torch.zeros(3)}, r"has shape \(3,\), in the model \(40, 30\)"),
        (None, "only a module has gradients"),
    ):
        with pytest.raises(perbit.EncodeError, match=match):
            compressor.compress(tensors)
    with pytest.raises(perbit.DecodeError, match="agreed were"):
        compressor.decompress(pt.dumps({"w": torch.zeros(40, 30)}, "uniform(4)"))
    with pytest.raises(ValueError, match="does not fit this model"):
        compressor.load_state_dict({"step": 1, "seed": 0, "memory": {"w": torch.zeros(3)}})
    with pytest.raises(ValueError, match="between 0 and 1"):
        pt.ErrorFeedback({"w": torch.zeros(3)}, "sign", decay=2)


# --- where it is found -----------------------------------------------------------------------------------------------


def test_it_is_found_after_importing_perbit() -> None:
    code = "import sys, perbit; assert 'torch' not in sys.modules; perbit.torch.encode; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert perbit.torch is pt


def test_the_server_and_clients_of_the_docs_learn() -> None:
    """The loop of docs/torch.md, as it stands there."""
    page = (Path(__file__).parent.parent / "docs" / "torch.md").read_text()
    code = page.split("## A server and its clients", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=400)
    samples = np.eye(4, 40)[labels] * 3 + rng.normal(size=(400, 40))
    x, y = torch.tensor(samples, dtype=torch.float32), torch.tensor(labels)

    def train(model: torch.nn.Module, part: torch.Tensor) -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()  # type: ignore[no-untyped-call,unused-ignore]
            optimiser.step()

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(40, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    )
    parts = dict(zip("abc", torch.arange(400).chunk(3), strict=True))
    exec(code, {"np": np, "torch": torch, "model": model, "parts": parts, "rounds": 6, "train": train})
    assert (model.eval()(x).argmax(dim=1) == y).float().mean() > 0.9
