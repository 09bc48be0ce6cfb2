"""The Trainer of Hugging Face transformers, with gradients as coded bytes.

    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.add_callback(GradientCompression(trainer, "topk(0.01) | qsgd(15) | rans"))

Each rank keeps its error memories in every checkpoint of the Trainer and goes on with them, and what was sent is among the logs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from perbit import extras

try:
    from transformers import Trainer, TrainerCallback
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.engines.huggingface") from error

from perbit.engines import ddp
from perbit.files import write_atomically
from perbit.plan.plan import PlanLike


class GradientCompression(TrainerCallback):
    """Registers perbit's hook when training begins.

    Args:
        trainer: whose model is trained by DistributedDataParallel. With a single process nothing is sent, and nothing changes.
        plan: a spec for all large parameters, or a Plan.
        options: those of `perbit.engines.ddp.State`.
    """

    def __init__(self, trainer: Trainer, plan: PlanLike, **options: Any) -> None:
        self.trainer, self.plan, self.options = trainer, plan, options
        self.state: ddp.State | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wrapped = self.trainer.model_wrapped
        if not dist.is_initialized() or dist.get_world_size() == 1 or self.state is not None:
            return
        self.state = ddp.compress(wrapped, self.plan, **self.options)
        if scaler := getattr(self.trainer.accelerator, "scaler", None):
            self.state.watch(scaler)
        saved = _file(args.output_dir, state.global_step)
        if state.global_step and saved.is_file():
            self.state.load_state_dict(torch.load(saved, weights_only=True))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.state is not None:
            kept, path = self.state.state_dict(), _file(args.output_dir, state.global_step)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda file: torch.save(kept, file))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if self.state is not None and logs is not None:
            sent = {"perbit_bytes": float(self.state.sent_bytes), "perbit_ratio": self.state.ratio}
            logs.update(sent)
            state.log_history[-1].update(sent)


def _file(folder: str, step: int) -> Path:
    return Path(folder) / f"checkpoint-{step}" / f"perbit-rank-{dist.get_rank()}.pt"
