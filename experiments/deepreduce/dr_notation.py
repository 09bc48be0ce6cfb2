"""DeepReduce's notation as specs: DR^value_index is a sparsifier with one codec for the positions and one for the values.

>>> dr(index="bf-p0", value="qsgd", ratio=0.1, fpr=0.01)
'topk(0.1, positions=bloom("p0", 0.01)) | qsgd(127) | pack'
>>> dr(index="bf-p2", ratio=0.1)
'topk(0.1, positions=bloom("p2_authors", 0.1, rule="density"))'
>>> dr(value="fit-dexp")
'topk(0.01, positions=raw32) | fitdexp(order="positions")'
>>> dr(ratio=None, index="huffman", value="deflate")
'nonzero(positions=huffgaps) | raw | deflate'

`PRESETS` holds the rows of the paper's tables by name, with the volume relative to the dense tensor that the paper reports.
"""

from __future__ import annotations

from typing import NamedTuple

from perbit.errors import SpecError

INDEX = {
    "none": "raw32",  # ∅: 32 bits each
    "bitmap": "bitmap",
    "rle": "rle",
    "huffman": "huffgaps",
    "bf-naive": 'bloom("naive", {rate})',
    "bf-p0": 'bloom("p0", {rate})',
    "bf-p1": 'bloom("p1", {rate})',
    "bf-p2": 'bloom("p2_authors", {rate})',
}
VALUE = {
    "none": "",  # ∅: 32 bits each
    "fp16": " | fp16",
    "deflate": " | raw | deflate",
    "qsgd": " | qsgd(127) | pack",  # the authors' code: 127 levels, buckets of 512, a byte each
    "fit-poly": " | fitpoly(segments=8, order={order})",  # degree 5, 8 pieces as in Fig. 3
    "fit-dexp": " | fitdexp(order={order})",
}


def dr(index: str = "none", value: str = "none", ratio: float | None = 0.01, fpr: float | None = None) -> str:
    """The spec of DR^value_index on the top `ratio` of the values, or on all that are not zero.

    Without `fpr` a Bloom filter has the rate of the authors' released code, 0.1·k/n: .01 at r = 10 %, .001 at 1 %.
    The order of fitted values travels in the positions where these are sent as they are (as the authors' code does), otherwise packed.
    """
    if index not in INDEX or value not in VALUE:
        raise SpecError(f"index is one of {', '.join(INDEX)}; value one of {', '.join(VALUE)}; got {index}, {value}")
    positions = INDEX[index].format(rate='0.1, rule="density"' if fpr is None else fpr)
    order = '"positions"' if index == "none" else '"packed"'
    sparsifier = f"nonzero(positions={positions})" if ratio is None else f"topk({ratio}, positions={positions})"
    return sparsifier + VALUE[value].format(order=order)


class Row(NamedTuple):
    """A row of a table: its spec, and the volume the paper reports, relative to the dense tensor (none where only a figure shows it)."""

    spec: str
    volume: float | None
    source: str


PRESETS = {
    # Table 2: FedAvg, LSTM, r = 10 %. The main text does not state the rate; the default of the released code is .01 here.
    "Top-r (10 %)": Row(dr(ratio=0.1), 0.2033, "Table 2, row 2"),
    "DR^∅_{BF-P0} (10 %)": Row(dr("bf-p0", ratio=0.1), 0.1425, "Table 2, row 3"),
    "DR^{Fit-Poly}_∅ (10 %)": Row(dr(value="fit-poly", ratio=0.1), 0.1039, "Table 2, row 4"),
    "DR^{QSGD}_{BF-P0} (10 %)": Row(dr("bf-p0", "qsgd", ratio=0.1), 0.0621, "Table 2, row 5"),
    # Table 6: NCF, whose gradients are sparse by themselves; FPR .6
    "DR^{QSGD}_{BF-P0} (NCF)": Row(dr("bf-p0", "qsgd", ratio=None, fpr=0.6), 0.2063, "Table 6"),
    "SKCompress (NCF)": Row("skcompress(bins=128)", 0.2175, "Table 6; the authors' runner takes 128 quantiles for NCF"),
    # Fig. 8: a convolution of ResNet-20, r = 1 %, where the released default is .001
    "Top-r (1 %)": Row(dr(), 0.02, "Fig. 8"),
    "DR^∅_{BF-naive}": Row(dr("bf-naive"), None, "Fig. 4"),
    "DR^∅_{BF-P0}": Row(dr("bf-p0"), 0.0155, "section 6.1 with the 33 % that recompute to 22.5 %"),
    "DR^∅_{BF-P1}": Row(dr("bf-p1"), None, "Fig. 8"),
    "DR^∅_{BF-P2}": Row(dr("bf-p2"), None, "Fig. 8"),
    "DR^∅_{RLE}": Row(dr("rle"), None, "Fig. 8"),
    "DR^∅_{Huffman}": Row(dr("huffman"), None, "Fig. 8"),
    "DR^{Deflate}_∅": Row(dr(value="deflate"), None, "Fig. 8"),
    "DR^{QSGD}_∅": Row(dr(value="qsgd"), None, "Fig. 8"),
    "DR^{Fit-Poly}_∅": Row(dr(value="fit-poly"), 0.012, "section 6.1: 40 % less than Top-r"),
    "DR^{Fit-DExp}_∅": Row(dr(value="fit-dexp"), 0.010, "section 6.1: 50 % less than Top-r"),
    "DR^{Fit-Poly}_{BF-P2}": Row(dr("bf-p2", "fit-poly"), None, "Fig. 8"),
    "DR^{QSGD}_{BF-P2}": Row(dr("bf-p2", "qsgd"), None, "Fig. 8"),
    "SKCompress": Row("skcompress(0.01, bins=32)", None, "Fig. 8; 32 buckets are our choice, for an error like QSGD's"),
    "SKCompress (256 buckets)": Row("skcompress(0.01)", None, "Fig. 8 with the published defaults"),
    # Appendix F.3: ResNet-50 on ImageNet
    "3LC": Row("threelc", None, "Appendix F.3"),
    "SketchML": Row("sketchml(0.01)", None, "Appendix F.3"),
}
