"""The numpy back end: the oracle every compiled kernel is tested against, and the fallback where none was built."""

from perbit.kernels.reference.entropy import *  # noqa: F403
from perbit.kernels.reference.numeric import *  # noqa: F403
