"""What the ranks do in tests/test_trainers.py: the trainers of other packages, and what DDP can be combined with."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_scenarios import tensors
from perbit.engines import ddp
from perbit.sim.data import load

SPEC = "topk(0.01) | qsgd(15) | rans"
STEPS, BATCH = 12, 32


def as_torchrun() -> None:
    """The environment in which trainers look for their ranks."""
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "HF_HUB_OFFLINE": "1"}


def network() -> nn.Module:
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, 10))


def digits() -> torch.utils.data.TensorDataset:
    x, y = tensors(load("digits").train)
    return torch.utils.data.TensorDataset(x, y)


def checksum(model: nn.Module) -> int:
    crc = 0
    for parameter in model.parameters():
        crc = zlib.crc32(parameter.detach().numpy().tobytes(), crc)
    return crc


def outcome(model: nn.Module, state: ddp.State, losses: list[float]) -> dict[str, Any]:
    return {
        "ratio": state.ratio,
        "checksum": checksum(model),
        "losses": losses,
        "memory": sorted(state.memories.arrays),
    }


def with_accelerate() -> dict[str, Any]:
    as_torchrun()
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(digits(), batch_size=BATCH)
    module = network()
    model, optimizer, loader = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.2), loader)
    state = ddp.compress(model, SPEC)  # the line
    losses = []
    for _, (x, y) in zip(range(STEPS), loader, strict=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return outcome(module, state, losses)


def with_lightning() -> dict[str, Any]:
    as_torchrun()
    import lightning
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    losses = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.2)

    class GradientCompression(lightning.Callback):
        def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
            self.state = ddp.compress(trainer.strategy.model, SPEC)  # the line

    strategy = DDPStrategy(process_group_backend="gloo")
    module, compression = Module(), GradientCompression()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=dist.get_world_size(), strategy=strategy, plugins=[LightningEnvironment()], callbacks=[compression],
        max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(digits(), batch_size=BATCH))
    return outcome(module, compression.state, losses)


class WithLoss(nn.Module):
    """As models of transformers are: they compute their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.network(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def with_transformers(folder: str) -> dict[str, Any]:
    """A run of twelve steps, and one that is resumed after eight."""
    as_torchrun()
    from transformers import Trainer, TrainingArguments

    from perbit.engines.huggingface import GradientCompression

    data = [{"x": x, "labels": y} for x, y in digits()]

    def run(resume: bool) -> tuple[Trainer, ddp.State]:
        arguments = TrainingArguments(
            folder, use_cpu=True, ddp_backend="gloo", max_steps=STEPS, per_device_train_batch_size=BATCH,
            learning_rate=5e-3, logging_steps=1, save_steps=8, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model=WithLoss(), args=arguments, train_dataset=data)
        compression = GradientCompression(trainer, SPEC)
        trainer.add_callback(compression)  # the line
        trainer.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-8") if resume else None)
        assert compression.state is not None
        return trainer, compression.state

    trainer, state = run(resume=False)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    logged = [entry.get("perbit_ratio") for entry in trainer.state.log_history if "loss" in entry]
    resumed, _ = run(resume=True)
    return {**outcome(trainer.model, state, losses), "resumed": checksum(resumed.model), "logged": logged}


# --- what DDP can be combined with -----------------------------------------------------------------------------------


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, inner: nn.Module, steps: int = 8) -> list[int]:
    """Checksums after each step of training."""
    data, found = digits(), []
    for step in range(steps):
        at = (torch.arange(BATCH) + BATCH * (2 * step + dist.get_rank())) % len(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.tensors[0][at]), data.tensors[1][at]).backward()
        optimizer.step()
        found.append(checksum(inner))
    return found


def checksums(how: str) -> list[int]:
    """Of a run with an option of DDP, an optimizer, or a compiler."""
    inner, options = network(), {}
    if how == "static_graph":
        options = {"static_graph": True}
    if how == "unused":
        options = {"find_unused_parameters": True}
    module: nn.Module = torch.compile(inner, backend="aot_eager") if how == "compiled inside" else inner
    model: nn.Module = DistributedDataParallel(module, **options)
    if how == "compiled outside":
        model = torch.compile(model, backend="aot_eager")
    ddp.compress(model, SPEC)
    if how == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return steps_of(
            model, ZeroRedundancyOptimizer(inner.parameters(), torch.optim.SGD, lr=0.2, momentum=0.5), inner
        )
    return steps_of(model, torch.optim.SGD(inner.parameters(), lr=0.2, momentum=0.5), inner)


def scaled() -> tuple[float, list[float]]:
    """How far what came, and what the memories still hold, is from what was meant, in units without scale, while a loss scaler changes its scale."""
    torch.manual_seed(0)
    inner = nn.Linear(64, 64, bias=False)
    model = DistributedDataParallel(inner)
    state = ddp.compress(model, "topk(0.1)")
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1)
    state.watch(scaler)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.0)
    random = torch.Generator().manual_seed(dist.get_rank())
    came, meant, scales = torch.zeros(64, 64), torch.zeros(64, 64), []
    for step in range(5):
        gradient = torch.randn(64, 64, generator=random)
        optimizer.zero_grad()
        scaler.scale((model(torch.eye(64)) * gradient.T).sum()).backward()
        scaler.unscale_(optimizer)
        came += inner.weight.grad
        dist.all_reduce(gradient)
        meant += gradient / dist.get_world_size()
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update(1024.0 if step == 1 else None)
    kept = torch.from_numpy(state.memories.arrays["weight"]).view(64, 64).clone() / scales[-1]
    dist.all_reduce(kept)
    return float((came + kept / dist.get_world_size() - meant).abs().max()), scales


def not_distributed() -> str:
    try:
        ddp.compress(network(), SPEC)
    except ValueError as error:
        return str(error)
    return ""
