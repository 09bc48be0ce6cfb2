"""perbit in NVFlare: four filters, two at each side; workflows and training scripts see models, the network sees frames.

    recipe.add_server_output_filter(ServerOutput(), tasks=["train"])
    recipe.add_client_input_filter(ClientInput(), tasks=["train"])
    recipe.add_client_output_filter(ClientOutput(), tasks=["train"])
    recipe.add_server_input_filter(ServerInput(), tasks=["train"])

docs/engines-nvflare.md tells the rest: what is coded, what happens when a client restarts, where the bytes are counted.
"""

from perbit import extras

try:
    from perbit.engines.nvflare.filters import ClientInput, ClientOutput, ServerInput, ServerOutput
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.engines.nvflare") from error
from perbit.session import Traffic

__all__ = ["ClientInput", "ClientOutput", "ServerInput", "ServerOutput", "Traffic"]
