"""torch tensors as coded bytes, for training loops of one's own.

message = perbit.torch.dumps(model.state_dict(), "uniform(4) | rans")
perbit.torch.load_into(model, message)
"""

from perbit.torch.errorfeedback import ErrorFeedback
from perbit.torch.frames import decode, decode_add, dumps, encode, load_into, loads

__all__ = ["ErrorFeedback", "decode", "decode_add", "dumps", "encode", "load_into", "loads"]
