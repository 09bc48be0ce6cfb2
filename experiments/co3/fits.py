"""CO₃ Figs. 1-5 on real gradients: fits, Wasserstein distances and kurtosis of the Table-I CNN on CIFAR-10.

    python tools/make_gradients.py cnn                                    trains it and records gradients at several steps
    python experiments/co3/fits.py <data>/gradients/cnn_cifar10_step*.npz   writes results/co3_fits.json and .png

The paper has DenseNet121, ResNet50V2 and NASNetMobile over 150 epochs; here the 552 874-parameter CNN of the companion papers
(Table I) over a few hundred steps, layers from the first convolution to the last dense one.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from perbit import files
from perbit.report.fit_picture import COLOUR, LABELS, draw_histogram
from perbit.report.fits import FAMILIES, TensorFit, fit_tensor
from perbit.report.style import COLOURS, MARKERS, picture
from perbit_papers.results import RESULTS, verdict, write_json

LIMIT = "these are single mini-batches of the first epoch, the paper follows deeper networks for 150 epochs"
Steps = dict[int, dict[str, TensorFit]]


def weights(path: Path) -> dict[str, Any]:
    """The kernels and matrices of one recording: what the paper calls layers."""
    value = files.read_tensors(path)
    if not isinstance(value, dict):
        raise SystemExit(f"{path} holds one array, expected the tensors of a model")
    return {name: x for name, x in value.items() if x.ndim > 1}


def step_of(path: Path) -> int:
    found = re.search(r"step(\d+)", path.stem)
    if found is None:
        raise SystemExit(f"{path.name} does not say at which step it was recorded (…step100.npz)")
    return int(found[1])


def draw(fits: Steps, tensors: dict[int, dict[str, Any]], layers: tuple[str, str, str]) -> None:
    """Histograms of the first layer; distances and kurtosis by step and by layer."""
    steps = sorted(fits)
    shown = [steps[0], steps[len(steps) // 2], steps[-1]]
    with picture(RESULTS / "co3_fits.png", 2, 3, width=14, height=8.4) as drawing:
        for ax, step in zip(drawing.axes[:3], shown, strict=True):
            draw_histogram(ax, tensors[step][layers[0]], fits[step][layers[0]])
            ax.set_title(f"step {step}: {ax.get_title()}")
        by_step, by_layer, kurtosis = drawing.axes[3:]
        for family, marker in zip(FAMILIES, MARKERS, strict=False):
            look = {"color": COLOUR[family], "marker": marker, "label": LABELS[family]}
            first = [fits[step][layers[0]] for step in steps]
            by_step.plot(steps, [row.w2[family] / row.sigma for row in first], **look)
            last = list(fits[steps[-1]].values())
            by_layer.plot([row.w2[family] / row.sigma for row in last], **look)
        by_layer.set_xticks(range(len(last)), [row.name for row in last], rotation=60, ha="right")
        by_step.set(title=f"W₂ of the first layer ({layers[0]})", xlabel="step", ylabel="W₂ / σ", yscale="log")
        by_layer.set(title=f"W₂ by layer, step {steps[-1]}", ylabel="W₂ / σ", yscale="log")
        for index, (place, layer) in enumerate(zip(("upper", "middle", "lower"), layers, strict=True)):
            heights = [fits[step][layer].kurtosis for step in steps]
            kurtosis.plot(steps, heights, color=COLOURS[index], marker=MARKERS[index], label=f"{place}: {layer}")
        kurtosis.axhline(0, color="#888888", linewidth=0.8, linestyle="--")
        kurtosis.set(title="excess kurtosis (0: normal)", xlabel="step")
        for ax in (by_step, by_layer, kurtosis):
            ax.legend()


def judge(fits: Steps, convolutions: list[str]) -> list[str]:
    steps = sorted(fits)
    rows = [(step, row) for step in steps for row in fits[step].values()]
    lost = [
        f"{row.name} at step {step} ({row.n} values: {row.best} {row.w2[row.best] / row.sigma:.3f}, "
        f"GenNorm {row.w2['gennorm'] / row.sigma:.3f} of σ)"
        for step, row in rows
        if row.best != "gennorm"
    ]
    ratio = {step: [r.w2["normal"] / r.w2["gennorm"] for r in fits[step].values()] for step in (steps[0], steps[-1])}
    first = fits[steps[0]][convolutions[0]], fits[steps[-1]][convolutions[0]]
    depth = fits[steps[-1]][convolutions[0]].kurtosis, fits[steps[-1]][convolutions[-1]].kurtosis
    falls = [fits[steps[-1]][name].kurtosis < fits[steps[0]][name].kurtosis for name in fits[steps[0]]]
    nearer = all(late < early for early, late in zip(*(ratio[s] for s in (steps[0], steps[-1])), strict=True))
    return [
        verdict(
            not lost,
            "Figs. 1-3, GenNorm fits best in every layer at every step (W₂)",
            f"in {len(rows) - len(lost)} of {len(rows)} cases" + (f"; not {', '.join(lost)}" if lost else ""),
        ),
        verdict(
            nearer,
            "Figs. 2-3, the normal closes in on GenNorm with training",
            f"W₂(normal)/W₂(GenNorm) from step {steps[0]} to {steps[-1]}: "
            + ", ".join(
                f"{name} {a:.1f}→{b:.1f}"
                for name, a, b in zip(fits[steps[0]], ratio[steps[0]], ratio[steps[-1]], strict=True)
            )
            + f"; {LIMIT}",
        ),
        verdict(
            all(falls),
            "Figs. 4-5, excess kurtosis falls towards 0 with training",
            f"it falls in {sum(falls)} of {len(falls)} layers; first layer {first[0].kurtosis:.2f} → {first[1].kurtosis:.2f}; {LIMIT}",
        ),
        verdict(
            depth[1] < depth[0],
            "Figs. 4-5, deeper convolutions are nearer to the normal",
            f"excess kurtosis {depth[0]:.2f} in the first, {depth[1]:.2f} in the last convolution at step {steps[-1]}",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="+", type=Path, help="gradients, one file per step")
    paths = sorted(parser.parse_args().recordings, key=step_of)
    tensors = {step_of(path): weights(path) for path in paths}
    fits: Steps = {}
    for step, named in tensors.items():
        print(f"fitting step {step} ...", flush=True)
        fits[step] = {name: row for name, x in named.items() if (row := fit_tensor(name, x)) is not None}
    convolutions = [name for name, x in tensors[step_of(paths[0])].items() if x.ndim == 4]
    layers = convolutions[0], convolutions[len(convolutions) // 2], convolutions[-1]
    sentences = judge(fits, convolutions)
    rows = {step: [row.as_json() for row in named.values()] for step, named in fits.items()}
    write_json(RESULTS / "co3_fits.json", {"layers": layers, "steps": rows, "verdicts": sentences})
    draw(fits, tensors, layers)
    print("\n".join(sentences))


if __name__ == "__main__":
    main()
