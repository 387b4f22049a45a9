"""ogbl-biokg: TransE, DistMult, ComplEx or RotatE; MRR among 500 given negatives of each side.

    python examples/ogb/biokg.py --model transe --root data --out runs/ogbl-biokg

Recipe: run.py and examples.sh of OGB's examples/linkproppred/biokg: rows of 2,000 numbers, 300,000 steps of 512
triples, self-adversarial loss of 128 negatives, triples weighed down by how often their pairs occur. A tie counts half
in a rank. What differs from the published recipe:

* 32 epochs, 298,000 steps; Adam's learning rate falls linearly, where OGB divides it by 10 at half of the steps;
* Adam is sparse: rows outside a step keep still;
* the 128 negatives, of the right type as OGB's, are shared by the 128 triples of a chunk, where each of OGB's has its
  own; a chunk in which two types meet shares them out, and a triple counts those of its type;
* negatives that make a training triple true are left out;
* first rows of DistMult and ComplEx are normal with OGB's variance, which is uniform in +-(500 + 2) / 2,000; the cubic
  penalty is a mean over a step's triples instead of a sum over the tables;
* the epoch is the best on 2,000 validation triples; OGB takes the last one.
"""

import sys

from graph_emb.models.kge.config import KGEConfig
from graph_emb.ogb.kge import KGERecipe
from graph_emb.ogb.script import Script, knowledge_graph

SHARED = {
    "dim": 2000,
    "num_negatives": 128,
    "chunk_size": 128,
    "batch_size": 512,
    "subsampling": True,
    "epochs": 32,
    "valid_every": 4,
    "patience": 0,
}
# OGB's margin of 500 only sets the range of the first rows where a score is a product.
PRODUCT = {
    **SHARED,
    "loss": "self_adversarial",
    "rule": "adam",
    "lr": 1e-3,
    "init_std": 502 / 2000 / 3**0.5,
    "n3": 2e-6,
}

SCRIPT = Script(
    file="examples/ogb/biokg.py",
    dataset="ogbl-biokg",
    recipes={
        "transe": KGERecipe(KGEConfig(model="transe", margin=20.0, lr=1e-4, **SHARED)),
        "distmult": KGERecipe(KGEConfig(model="distmult", **PRODUCT)),
        "complex": KGERecipe(KGEConfig(model="complex", **PRODUCT)),
        "rotate": KGERecipe(KGEConfig(model="rotate", margin=20.0, lr=1e-4, **SHARED)),
    },
    description=__doc__,
    load=knowledge_graph("ogbl-biokg"),
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
