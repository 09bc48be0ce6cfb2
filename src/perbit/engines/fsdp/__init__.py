"""FSDP2 (`fully_shard`) with gradients that travel to their owners as coded bytes, and parameters that come back as coded differences.

    fully_shard(model)
    state = fsdp.compress(model, "topk(0.01) | qsgd(15) | rans", parameters="uniform(4) | rans")

Only what torch documents is used: the setters of FSDPModule and DTensor.
"""

from perbit import extras

try:
    from perbit.engines.fsdp.state import State, compress
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.engines.fsdp") from error

__all__ = ["State", "compress"]
