"""torch tensors as coded bytes, for training loops of one's own.

message = perbit.torch.dumps(model.state_dict(), "uniform(4) | rans")
perbit.torch.load_into(model, message)
perbit.torch.all_reduce(gradients, "topk(0.01) | fp16", memory=memory)
"""

from perbit import extras

try:
    from perbit.torch import loggers
    from perbit.torch.averaging import Memory, all_reduce
    from perbit.torch.errorfeedback import ErrorFeedback
    from perbit.torch.frames import decode, decode_add, dumps, encode, load_into, loads
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.torch") from error

__all__ = [
    "ErrorFeedback", "Memory", "all_reduce", "decode", "decode_add", "dumps", "encode", "load_into", "loads", "loggers",
]  # fmt: skip
