"""Algorithms by name: which channels go up and down, from which paper, with what defaults, and what differs from the paper.

Every preset takes the codecs of the two directions; the one-way algorithms send the model raw unless told otherwise.
Where there are memories, `alpha="tensor"` gives each tensor the rate of its own ω, and `start="first"` lets the uplink's memories start at
the first gradient, which is then sent raw: both as in the code of MCM's authors.
`step_bound` tells the largest step the theory of an algorithm allows.

>>> [name for name in PRESETS if "mcm" in name]
['mcm', 'rand_mcm', 'rand_mcm_groups', 'rand_mcm_averaged']
>>> mcm(up="qsgd(1) | rans", down="qsgd(1) | rans").carries
'model'
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perbit import theory
from perbit.channels import Direct, ErrorFeedback, Layout, Momentum, Shifted, Summed, Warmup
from perbit.channels.kinds import Alpha, Beginning
from perbit.coding.codec import Codec, as_pipeline
from perbit.errors import SpecError
from perbit.plan.plan import Chooser, Plan, PlanLike, as_plan
from perbit.protocols.downlinks import Averaged, CatchUp, PerClient, Shared, Versions, one_for_all
from perbit.protocols.protocol import Protocol

ONE_LEVEL = "qsgd(1, bucket=0) | rans"  # s = 1 as in MCM's convex experiments: one norm for the whole vector
QUANTIZE = (
    "qsgd(7) | rans"  # fine enough for the layers of a network, where one level for a whole tensor drowns it in noise
)
RAW = "raw"
LOCAL_UP = "rd(bits=0.25)"
LOCAL_DOWN = "rd(bits=1)"


@dataclass(frozen=True)
class Preset:
    """A named algorithm: how to make it, whether it compresses both ways, and its bound on the step."""

    make: Callable[..., Protocol]
    two_way: bool
    bound: Callable[[float, int, float, float], float]


PRESETS: dict[str, Preset] = {}


def _one_way_bound(L: float, n_clients: int, omega_up: float, omega_down: float) -> float:
    return theory.step_unidirectional(L, n_clients, omega_up)


def _preset(
    two_way: bool = False, bound: Callable[[float, int, float, float], float] = _one_way_bound
) -> Callable[[Callable[..., Protocol]], Callable[..., Protocol]]:
    def add(make: Callable[..., Protocol]) -> Callable[..., Protocol]:
        PRESETS[make.__name__] = Preset(make, two_way, bound)
        return make

    return add


def step_bound(name: str, L: float, n_clients: int, like: Any, protocol: Protocol) -> float:
    """The theory's γ_max of a preset for the ω its codecs declare on a model like this."""
    layout = Layout.of(like)
    down = protocol.downlink.channel
    return PRESETS[name].bound(L, n_clients, protocol.uplink.omega(layout), down.omega(layout))


# --- one way --------------------------------------------------------------------------------------------------------


@_preset()
def sgd(up: PlanLike = RAW, down: PlanLike = RAW) -> Protocol:
    """w ← w - γ·mean g_i, in full precision: the yardstick.

    Differs from the paper: messages are float32 although the server's model is float64.
    """
    return Protocol.of("sgd", Direct(up), Direct(down))


@_preset()
def qsgd(up: PlanLike = QUANTIZE, down: PlanLike = RAW) -> Protocol:
    """w ← w - γ·mean C(g_i). Alistarh et al., QSGD, NeurIPS 2017.

    Differs from the paper: the entropy coder is rANS with a parametric prior, not Elias codes.
    """
    return Protocol.of("qsgd", Direct(up), Direct(down))


@_preset()
def ecq_sgd(up: PlanLike = QUANTIZE, down: PlanLike = RAW, decay: float | None = None) -> Protocol:
    """Uplink error feedback around a quantizer. Wu et al., Error compensated quantized SGD, ICML 2018.

    Differs from the paper: one decay γ in place of its α and β; by default the largest that keeps the memory bounded.
    """
    return Protocol.of("ecq_sgd", ErrorFeedback(Direct(up), decay), Direct(down))


@_preset()
def diana(up: PlanLike = QUANTIZE, down: PlanLike = RAW, alpha: Alpha = None, start: Beginning = "zero") -> Protocol:
    """Δ_i = C(g_i - h_i); ĝ_i = h_i + Δ_i; h_i += αΔ_i. Mishchenko et al., Distributed learning with compressed gradient
    differences, 2019.

    Differs from the paper: α = 1/(2(ω+1)) as in the MCM authors' code, where theirs is 1/(ω+1); no proximal step, no momentum.
    """
    return Protocol.of("diana", Shifted(Direct(up), alpha, start), Direct(down))


@_preset()
def ef21(up: PlanLike = "topk(0.1)", down: PlanLike = RAW) -> Protocol:
    """g_i's memory moves by all that was sent (α = 1), for biased codecs. Richtárik et al., EF21, NeurIPS 2021.

    Differs from the paper: the memory starts at zero instead of at a full first gradient, which would cost a raw message.
    """
    return Protocol.of("ef21", Shifted(Direct(up), 1.0), Direct(down))


@_preset()
def co3(up: PlanLike = "fp(2, 1) | huffman", down: PlanLike = RAW, decay: float = 0.7) -> Protocol:
    """v = g + γm; ĝ = Q(v); m ← v - ĝ, entropy-coded per tensor. CO₃ (Chen et al., 2022): fp4, with its memory decay γ = 0.7.

    Differs from the paper: scale and code are fitted in every frame. The paper refits them every 5 epochs and gives all users one code a
    layer; `perbit.hold('fp(2, 1) | huffman(prior="always")', mean)` makes that plan from the epoch's mean of g + γm.
    """
    return Protocol.of("co3", ErrorFeedback(Direct(up), decay), Direct(down))


@_preset()
def predicted_feedback(
    up: PlanLike = "topk(0.01) | mwl2(2, 2) | rans", down: PlanLike = RAW, alpha: float = 0.01, decay: float = 1.0
) -> Protocol:
    """Error feedback around a prediction: a client is expected to go on as it lately did, and what differs is sent.

    v = x + γm; ĝ = h + C(v - h); m ← v - ĝ; h ← h + αC(v - h). What a client says round after round, its own data's pull included,
    needs to be sent less and less often and leaves room for the rest. α should be about the share of values that a frame carries: a value
    waits as many rounds as that share is small, then moves h by what came together, and from twice the share on the memories grow.

    Differs from DIANA and EF21, whose memory is the predictor: classical error feedback (Seide et al., 2014) stands around it, so biased
    codecs lose nothing and α can be small. Absent clients count as zero, not as predicted: m knows exactly what was sent. Ours.
    """
    return Protocol.of("predicted_feedback", _predicted(up, alpha, decay), Direct(down))


def _predicted(up: PlanLike, alpha: float, decay: float) -> ErrorFeedback:
    return ErrorFeedback(Shifted(Direct(up), alpha), decay)


@_preset()
def deep_gradient_compression(
    up: PlanLike = "topk(0.01)", down: PlanLike = RAW, momentum: float = 0.9, warmup_rounds: int = 0
) -> Protocol:
    """Momentum correction, factor masking and warm-up around top-k with error feedback. Lin et al., ICLR 2018.

    Differs from the paper: it keeps 1 % instead of 0.1 % by default, which needs no warm-up; clipping is the caller's, momentum is
    heavy-ball (not Nesterov); the four warm-up stages (25 %, 6.25 %, 1.56 %, 0.4 % kept) last `warmup_rounds` each.
    """
    stages = tuple((warmup_rounds, f"topk({ratio})") for ratio in (0.25, 0.0625, 0.015625, 0.004) if warmup_rounds)
    innermost = Warmup(stages, up) if stages else Direct(up)
    return Protocol.of("deep_gradient_compression", Momentum(ErrorFeedback(innermost), momentum), Direct(down))


# --- both ways, the server steps with what it sent ("degraded") -------------------------------------------------------


@_preset(two_way=True, bound=theory.step_degraded)
def double_squeeze(up: PlanLike = "topk(0.1)", down: PlanLike = "topk(0.1)", decay: float | None = None) -> Protocol:
    """Error feedback on both links. Tang et al., DoubleSqueeze, ICML 2019; the same as Zheng et al.'s dist-EF-SGD, NeurIPS 2019.

    Differs from the papers: for codecs with ω ≥ 1, where classical error feedback has no bound, the memory decays by
    1/(ω+1); no momentum, no blocks.
    """
    return Protocol.of(
        "double_squeeze", ErrorFeedback(Direct(up), decay), ErrorFeedback(Direct(down), decay), carries="update"
    )


dist_ef_sgd = double_squeeze


@_preset(two_way=True, bound=theory.step_degraded)
def artemis(
    up: PlanLike = QUANTIZE, down: PlanLike = QUANTIZE, alpha: Alpha = None, start: Beginning = "zero"
) -> Protocol:
    """Uplink memory; everybody steps with C(mean ĝ_i). Philippenko and Dieuleveut, Artemis, 2020.

    Differs from the paper: the compressed step includes γ, which changes nothing for codecs that commute with scaling.
    """
    return Protocol.of("artemis", Shifted(Direct(up), alpha, start), Direct(down), carries="update")


@_preset(two_way=True, bound=theory.step_degraded)
def dore(
    up: PlanLike = QUANTIZE,
    down: PlanLike = QUANTIZE,
    alpha: Alpha = None,
    eta: float | None = None,
    beta: float = 1.0,
    start: Beginning = "zero",
) -> Protocol:
    """Uplink memory; down q = -γĝ + ηe, q̂ = C(q), e ← q - q̂, w ← w + βq̂. Liu et al., A double residual compression algorithm
    (DORE), AISTATS 2020.

    Differs from the paper: η = 1/(ω+1) where ω ≥ 1 (the paper's experiments take η = 1 with a codec that has a small ω);
    no proximal step.
    """
    downlink = Shared(Summed(ErrorFeedback(Direct(down), eta), beta))
    return Protocol.of("dore", Shifted(Direct(up), alpha, start), downlink, carries="update")


@_preset(two_way=True, bound=theory.step_degraded)
def doubly_compressed_sgd(up: PlanLike = QUANTIZE, down: PlanLike = QUANTIZE, alpha: Alpha = None) -> Protocol:
    """Uplink memory, C of the aggregate down. Gorbunov et al., Linearly converging error compensated SGD, 2020 (DIANAsr-DQ).

    Differs from the paper: its general framework (variance reduction, arbitrary sampling) is left out; what remains sends
    what Artemis sends.
    """
    return Protocol.of("doubly_compressed_sgd", Shifted(Direct(up), alpha), Direct(down), carries="update")


# --- both ways, the server's model is preserved -----------------------------------------------------------------------


@_preset(two_way=True, bound=theory.step_mcm)
def mcm(
    up: PlanLike = QUANTIZE,
    down: PlanLike = QUANTIZE,
    alpha_up: Alpha = None,
    alpha_down: Alpha = None,
    catch_up: CatchUp | None = None,
    start: Beginning = "zero",
) -> Protocol:
    """w_{k+1} = w_k - γ·mean ĝ_i(ŵ_k); Ω = w_{k+1} - H; ŵ_{k+1} = H + C(Ω); H += αC(Ω). Philippenko and Dieuleveut, Preserved
    central model for faster bidirectional compression, NeurIPS 2021.

    Differs from the paper: α = 1/(2(ω+1)) both ways as in the authors' code (the theory: α_down ≤ 1/(4ω)); H starts at the
    first model, which everybody knows; a client that was away is sent one frame with what it lacks and has a memory of its own from
    then on, as in Rand-MCM (`catch_up="cheapest"` sends the missed frames, or a reset, instead).
    """
    downlink = one_for_all(Shifted(Direct(down), alpha_down), catch_up)
    return Protocol.of("mcm", Shifted(Direct(up), alpha_up, start), downlink)


@_preset(two_way=True, bound=theory.step_mcm)
def predicted_both_ways(
    up: PlanLike = "topk(0.01) | mwl2(2, 2) | rans",
    down: PlanLike = "topk(0.1) | mwl2(2, 2) | rans",
    alpha: float = 0.01,
    decay: float = 1.0,
    alpha_down: float = 1.0,
    catch_up: CatchUp | None = None,
) -> Protocol:
    """`predicted_feedback` up; down what the clients' model lacks of the server's, which stays exact: ŵ ← ŵ + C(w - ŵ).

    What a frame leaves out is still lacking in the next round, so codecs that lose less than they are given (ω < 1) lose nothing for
    good. Ours; no theory of its own. Differs from MCM by the uplink, and by a downlink memory that follows at once; for unbiased codecs
    down take a small `alpha_down` as MCM does.
    """
    downlink = one_for_all(Shifted(Direct(down), alpha_down), catch_up)
    return Protocol.of("predicted_both_ways", _predicted(up, alpha, decay), downlink)


@_preset(two_way=True, bound=theory.step_mcm)
def rand_mcm(
    up: PlanLike = QUANTIZE,
    down: PlanLike = QUANTIZE,
    alpha_up: Alpha = None,
    alpha_down: Alpha = None,
    folder: str | None = None,
    start: Beginning = "zero",
) -> Protocol:
    """MCM with a memory H_i and a draw of C_i for each client. `folder` keeps the N memories of both directions in files.

    Differs from the paper: Ω_i = w - H_i (its equation (4) drops the i); a client that is away is not sent anything.
    """
    downlink = PerClient(Shifted(Direct(down), alpha_down))
    return Protocol.of("rand_mcm", Shifted(Direct(up), alpha_up, start), downlink, folder=folder)


@_preset(two_way=True, bound=theory.step_mcm)
def rand_mcm_groups(
    up: PlanLike = QUANTIZE,
    down: PlanLike = QUANTIZE,
    groups: int = 4,
    alpha_up: Alpha = None,
    alpha_down: Alpha = None,
    start: Beginning = "zero",
) -> Protocol:
    """Rand-MCM-G: the clients of each of G groups share a memory and a draw.

    Differs from the paper: client i belongs to group i mod G.
    """
    downlink = Shared(Shifted(Direct(down), alpha_down), groups)
    return Protocol.of("rand_mcm_groups", Shifted(Direct(up), alpha_up, start), downlink)


@_preset(two_way=True, bound=theory.step_mcm)
def rand_mcm_averaged(
    up: PlanLike = QUANTIZE,
    down: str = QUANTIZE,
    reset_every: int | None = None,
    alpha_up: Alpha = None,
    alpha_down: Alpha = None,
    start: Beginning = "zero",
) -> Protocol:
    """Rand-MCM with one averaged memory H̄ at the server, which moves when a round is over; every `reset_every` rounds, by default 4√d
    as in the authors' code, the clients' H_i become H̄.

    Differs from the paper: a client that is away fetches the reset when it returns.
    """
    return Protocol.of(
        "rand_mcm_averaged", Shifted(Direct(up), alpha_up, start), Averaged(down, alpha_down, reset_every)
    )


# --- variants that fail on purpose, and the reference that cannot be sent ----------------------------------------------


@_preset(two_way=True, bound=theory.step_mcm)
def update_compression(up: PlanLike = QUANTIZE, down: PlanLike = QUANTIZE, alpha: Alpha = None) -> Protocol:
    """ŵ_k = ŵ_{k-1} - γC(mean ĝ): the errors of ŵ add up, for nothing pulls it back to w. MCM's first failed attempt."""
    return Protocol.of("update_compression", Shifted(Direct(up), alpha), Direct(down), carries="update", exact=True)


@_preset(two_way=True, bound=theory.step_mcm)
def model_compression(up: PlanLike = QUANTIZE, down: PlanLike = "qsgd(31) | rans", alpha: Alpha = None) -> Protocol:
    """ŵ_k = C(w_k) (α_down = 0): the noise does not vanish at the optimum. MCM's second failed attempt."""
    return Protocol.of("model_compression", Shifted(Direct(up), alpha), Direct(down))


@_preset(two_way=True, bound=theory.step_mcm)
def model_difference(up: PlanLike = QUANTIZE, down: PlanLike = "qsgd(15) | rans", alpha: Alpha = None) -> Protocol:
    """ŵ_k = ŵ_{k-1} + C(w_k - ŵ_{k-1}) (α_down = 1): with ω > 1 the difference grows. MCM's third failed attempt.

    Differs from the paper: its γ in front of C is a slip.
    """
    return Protocol.of("model_difference", Shifted(Direct(up), alpha), Shifted(Direct(down), 1.0))


@_preset(two_way=True, bound=theory.step_ghost)
def ghost(up: PlanLike = QUANTIZE, down: PlanLike = QUANTIZE, alpha: Alpha = None) -> Protocol:
    """ŵ_k = w_{k-1} - γC(mean ĝ): MCM's starting point. A reference run: the clients are lent w_{k-1}, which no frame carries.

    Differs from the paper: with an uplink memory, so that it compares with MCM.
    """
    return Protocol.of("ghost", Shifted(Direct(up), alpha), Direct(down), carries="ghost")


# --- federated averaging ---------------------------------------------------------------------------------------------


@_preset()
def fedavg(up: PlanLike = RAW, down: PlanLike = RAW, local_steps: int = 5) -> Protocol:
    """Workers take local steps and send w - w_local; the server averages. McMahan et al., AISTATS 2017. Step with γ = 1.

    Differs from the paper: every client has the same weight.
    """
    return Protocol.of("fedavg", Direct(up), Direct(down), local_steps=local_steps)


@_preset(two_way=True, bound=theory.step_degraded)
def fedavg_topk_ef(
    up: PlanLike | None = None, down: PlanLike | None = None, ratio: float = 0.1, local_steps: int = 5
) -> Protocol:
    """FedAvg with top-k and error feedback both ways; tensors with one dimension go uncompressed. Xu et al., DeepReduce,
    2021, Algorithm 2.

    Differs from the paper: a lone vector (no model) is compressed although it has one dimension.
    """
    plan = Plan.of(f"topk({ratio})", small_below=0)
    uplink, downlink = ErrorFeedback(Direct(up or plan)), ErrorFeedback(Direct(down or plan))
    return Protocol.of("fedavg_topk_ef", uplink, downlink, carries="update", local_steps=local_steps)


@_preset(two_way=True, bound=theory.step_mcm)
def federated(
    up: PlanLike = LOCAL_UP,
    down: PlanLike = LOCAL_DOWN,
    decay: float = 0.5,
    apart: float = 0.0,
    first: PlanLike = RAW,
    keep: int = 42,
) -> Protocol:
    """Local training by clients that come and go, under any strategy; what the engines run unless told otherwise. Ours.

    Up: the update with error feedback that decays (unbiased codecs need none), for what was not sent is trained again from the same
    start, and must not add up. For long training by small steps, `decay=1.0, apart=1.0` lets a client start from where it would be had
    it sent everything (docs/protocols.md says when).
    Down: the model against what the client holds, as in MCM and EF21, so that one frame brings a client up to date however long it
    was away; `keep` is how many such references the server remembers, `first` the codecs of full models.

    Differs from FedAvg (McMahan et al., 2017): both directions are compressed.
    """
    uplink = Direct(up) if _is_unbiased(up) else ErrorFeedback(Direct(up), decay, apart)
    return Protocol.of("federated", uplink, Versions(Shifted(Direct(down)), first, keep))


def _is_unbiased(plan: PlanLike) -> bool:
    return all(as_pipeline(chosen).unbiased for chosen in as_plan(plan).all_codecs)


# --- from a name to a protocol -----------------------------------------------------------------------------------------


def protocol_of(
    protocol: Protocol | str | None = None, up: PlanLike | None = None, down: PlanLike | None = None, **options: Any
) -> Protocol:
    """A protocol by name; the one place where names, codecs and parameters become one.

    Args:
        protocol: the name of a preset, a Protocol (which passes through), or None for `federated`.
        up, down: the codecs of the two directions; None for the preset's own.
        options: the preset's other parameters.

    >>> protocol_of("mcm", up="qsgd(1) | rans").name, protocol_of(up="topk(0.01)").name
    ('mcm', 'federated')
    """
    if isinstance(protocol, Protocol):
        if up is not None or down is not None or options:
            raise SpecError("a protocol has its codecs already; give the name of a preset to choose others")
        return protocol
    protocol = protocol or "federated"
    preset = preset_of(protocol)
    known = preset_options(preset)
    for key, value in options.items():
        if key not in known:
            raise SpecError(f"{key} is no parameter of {protocol}; it has {', '.join(known) or 'none'}")
        wants_text = isinstance(known[key], str)
        if wants_text != isinstance(value, str | Chooser | Codec) and not (
            known[key] is None and isinstance(value, str)
        ):
            raise SpecError(f"{key} cannot be {value!r}; {protocol} takes {known[key]!r} without it")
    given = {name: plan for name, plan in (("up", up), ("down", down)) if plan is not None}
    return preset.make(**given, **options)


def preset_of(name: str) -> Preset:
    """The preset of this name."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(PRESETS)}"
        raise SpecError(f"there is no protocol {name!r}; {hint}")
    return PRESETS[name]


def preset_options(preset: Preset) -> dict[str, Any]:
    """The parameters of a preset beside its codecs, with their defaults."""
    parameters = inspect.signature(preset.make).parameters
    return {name: found.default for name, found in parameters.items() if name not in ("up", "down")}
