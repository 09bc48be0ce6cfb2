"""Ways down: how the server's model reaches the clients, and how a client that was away catches up.

Shared(channel)      one frame a round for everybody (or for each of G groups); who was away replays what was missed, or is reset
Followed(channel)    one frame a round for those in step; who was away is sent, in one frame, what it lacks of their model
Versions(channel)    the exact model against what each client holds; clients that hold the same share one frame
PerClient(channel)   a frame and a memory of its own for each client, made when the client comes (Rand-MCM)
Averaged(codec)      a frame for each client, but one averaged memory at the server, and resets now and then

The server has a *side*, and knows of each client a *place*; the client has a side of its own, which the server's place describes.
"""

from perbit.channels import Channel, Shifted, Summed
from perbit.coding.codec import as_pipeline
from perbit.plan import as_plan
from perbit.protocols.downlinks.averaged import Averaged, AveragedClient, AveragedPlace, AveragedServer
from perbit.protocols.downlinks.base import Delivery, Downlink, Start, started
from perbit.protocols.downlinks.followed import Chain, Followed
from perbit.protocols.downlinks.perclient import OwnModel, PerClient
from perbit.protocols.downlinks.references import Reference, References, Spot
from perbit.protocols.downlinks.shared import Broadcast, CatchUp, Position, Shared
from perbit.protocols.downlinks.versions import Versions

KINDS = (Shared, Followed, Versions, PerClient, Averaged)
STATE_TYPES = (
    Position, Broadcast, Chain, Spot, Reference, References, OwnModel, AveragedServer, AveragedPlace, AveragedClient,
)  # fmt: skip


def one_for_all(channel: Channel, catch_up: CatchUp | None = None) -> Downlink:
    """The way down of an algorithm with one memory for all clients.

    Those in step share every frame. Who was away is sent one frame with what it lacks, where that is sound: with a shift, the
    memory is from then on the client's own, as in the randomised MCM; where steps are added up, with a biased codec, which loses less than it
    is given. Otherwise, or if `catch_up` says so, missed frames are sent, or a reset, as the papers have it.
    """
    if catch_up is None and isinstance(channel, Shifted):
        return Versions(channel)
    if catch_up is None and isinstance(channel, Summed) and _loses_less_than_it_is_given(channel):
        return Followed(channel)
    return Shared(channel, catch_up=catch_up or "cheapest")


def _loses_less_than_it_is_given(channel: Channel) -> bool:
    """As biased codecs do, and exact ones; the errors of unbiased ones may be larger than what they code."""
    codecs = map(as_pipeline, as_plan(channel.plan_at(0)).all_codecs)
    return all(not codec.unbiased or codec.omega(1 << 20) < 1 for codec in codecs)


__all__ = [
    "KINDS", "STATE_TYPES", "Averaged", "AveragedClient", "Broadcast", "CatchUp", "Delivery", "Downlink", "Followed", "PerClient",
    "Position", "Reference", "References", "Shared", "Spot", "Start", "Versions", "one_for_all", "started",
]  # fmt: skip
