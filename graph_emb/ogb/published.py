"""Published rows of OGB's leaderboards and baselines, shown next to our own.

Means and standard deviations are over 10 runs. Sources, as each row names them:

* "OGB leaderboard": ogb.stanford.edu/docs/leader_linkprop and leader_nodeprop, as of April 2023, with the valid column
  where it was copied;
* "DGL": examples/pytorch/ogb of dmlc/dgl (deepwalk, line, ogbn-mag), the tables of their READMEs.

Parameters are those of the published recipe, counted from its sizes; None where these are not known.
"""

from __future__ import annotations

from dataclasses import dataclass

BOARD, DGL = "OGB leaderboard", "DGL examples/pytorch/ogb"
Value = float | tuple[float, float] | None


@dataclass(frozen=True)
class Published:
    """One row: ``test`` and ``valid`` are (mean, std), a mean alone, or None where not published."""

    method: str
    test: Value
    valid: Value = None
    parameters: int | None = None
    source: str = BOARD


PUBLISHED: dict[str, tuple[Published, ...]] = {
    "ogbl-ddi": (
        Published("DeepWalk", (0.2642, 0.0610), (0.4132, 0.0169), 1_543_913, DGL),
        Published("DeepWalk, second row", (0.2246, 0.0290)),
        Published("node2vec", (0.2326, 0.0209), (0.3292, 0.0121), 645_249),
        Published("MF", (0.1368, 0.0475), (0.3370, 0.0264), 1_224_193),
        Published("GraphSAGE, learned inputs", (0.5390, 0.0474), 0.6262),
        Published("GCN, learned inputs", (0.3707, 0.0507), 0.5550),
        Published("Common neighbours", 0.1773, 0.0947),
    ),
    "ogbl-collab": (
        Published("DeepWalk", (0.5037, 0.0034), 0.6061, None, DGL),
        Published("node2vec", (0.4888, 0.0054), 0.5703, 30_322_945),
        Published("MF", (0.3886, 0.0029), 0.4896),
        Published("Common neighbours", 0.6137),
        Published("HOP-REC, validation edges used", 0.7012),
    ),
    "ogbl-ppa": (
        Published("DeepWalk", (0.2888, 0.0153), None, None, DGL),
        Published("node2vec", (0.2226, 0.0083), 0.2253, 73_878_913),
        Published("MF", (0.3229, 0.0094), 0.3228),
        Published("Resource allocation", 0.4933),
    ),
    "ogbl-citation2": (
        Published("node2vec", (0.6141, 0.0011), None, 374_911_105),
        Published("MF", (0.5186, 0.0443)),
        Published("Adamic-Adar", 0.5189),
        Published("GraphSAGE", 0.8260),
    ),
    "ogbl-vessel": (
        Published("MF", (0.4997, 0.0005)),
        Published("node2vec + GCN", 0.4954),
        Published("MLP on coordinates", 0.4794),
        Published("SEAL", 0.8050),
    ),
    "ogbl-biokg": (
        Published("TransE", (0.7452, 0.0004)),
        Published("DistMult", (0.8043, 0.0003)),
        Published("ComplEx", (0.8095, 0.0007)),
        Published("RotatE", (0.7989, 0.0004)),
    ),
    "ogbl-wikikg2": (
        Published("TransE, width 500", (0.4256, 0.0030), 0.4272),
        Published("DistMult, width 500", (0.3729, 0.0045), 0.3506),
        Published("ComplEx, width 250", (0.4027, 0.0027), 0.3759),
        Published("RotatE, width 250", (0.4332, 0.0025), 0.4353),
        Published("TransE, width 100", (0.2622, 0.0045)),
        Published("DistMult, width 100", (0.3447, 0.0082)),
        Published("ComplEx, width 50", (0.3804, 0.0022)),
        Published("RotatE, width 50", (0.2530, 0.0034)),
    ),
    "ogbn-arxiv": (
        Published("node2vec, with features", (0.7007, 0.0013), 0.7129, 21_818_792),
        Published("LINE, with features", (0.7047, 0.0019), (0.7176, 0.0008), 33_166_231, DGL),
        Published("MLP on features", 0.5550),
        Published("GCN", 0.7174),
    ),
    "ogbn-products": (
        Published("node2vec, with features", (0.7249, 0.0010), 0.9032, 313_612_207),
        Published("LINE, with features", (0.7252, 0.0029), (0.8957, 0.0009), 477_706_544, DGL),
        Published("MLP on features", 0.6106),
        Published("GCN", 0.7564),
    ),
    "ogbn-proteins": (
        Published("node2vec, with features", (0.6881, 0.0065), 0.7007, 17_094_000),
        Published("LINE, with features", (0.6207, 0.0125), (0.7050, 0.0129), 25_983_172, DGL),
        Published("MLP on features", 0.7204),
    ),
    "ogbn-mag": (
        Published("metapath2vec, with features", (0.3544, 0.0036), 0.3506),
        Published("R-GCN, full batch", 0.3977),
        Published("R-GCN, neighbour sampling", (0.4678, 0.0067), 0.4761),
        Published("R-GCN, learned inputs", (0.4781, 0.0037), 0.4875, 154_366_772, DGL),
        Published("MLP on features", 0.2692),
    ),
}
"""By data set."""


def rows_of(dataset: str) -> tuple[Published, ...]:
    """Published rows of a data set; none of one that no row is known of."""
    return PUBLISHED.get(dataset, ())


def text_of(value: Value) -> str:
    """As a leaderboard writes it: ``0.2642 ± 0.0610``."""
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else f"{value[0]:.4f} ± {value[1]:.4f}"
