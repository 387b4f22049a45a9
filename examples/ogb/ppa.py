"""ogbl-ppa: node2vec, DeepWalk or matrix factorisation, then OGB's link predictor; Hits@100.

    python examples/ogb/ppa.py --model node2vec --root data --out runs/ogbl-ppa

Recipes: node2vec.py and mf.py of OGB's examples/linkproppred/ppa and DGL's examples/pytorch/ogb/deepwalk, under OGB's
mlp.py, which reads the species of a protein, one of 58, beside the embedding. What differs from the published recipes:

* the embedding is trained again for every seed; --freeze-embedding keeps one, as the published rows did;
* OGB's mlp.py keeps one Adam over its 10 runs; here each seed has its own;
* walk models learn by plain SGD, falling linearly, instead of sparse Adam 0.01 (node2vec) and row-wise Adagrad 0.1
  (DeepWalk, whose Laplacian term is left out; the sum of token and context rows stands for it);
* negatives of the predictor are non-edges; OGB draws pairs that may be edges (1 in 8,000 is);
* the loss is taken on logits: log(sigmoid + 1e-15) saturates;
* the rows of matrix factorisation learn by sparse Adam: rows outside a batch keep still.

The real set has 576,289 proteins and 21 million training edges: DeepWalk takes 30 walks of 80 nodes from each.
"""

import sys

from graph_emb.models.links.config import LinkPredictorConfig
from graph_emb.models.links.matrix_factorization import MatrixFactorizationConfig
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.ogb.recipes import LinkRecipe, WalkEmbedding
from graph_emb.ogb.script import Script, plain_graph

# PyG's context of 20 nodes: the start and the 19 after it, all alike.
NODE2VEC = WalkEmbedding(
    SkipGramConfig(
        window=19,
        window_weighting="uniform",
        num_negatives=1,
        negative_power=0.0,
        tables=1,
        lr=0.025,
        epochs=2,
    )
)
DEEPWALK = WalkEmbedding(
    SkipGramConfig(window=1, num_negatives=1, negative_power=0.0, tables=2, lr=0.05),
    num_walks=30,
    walk_length=80,
    context="add",
)
METRICS = ("hits@10", "hits@50", "hits@100")
PREDICTOR = LinkPredictorConfig(dropout=0.0, epochs=20, eval_every=1, metrics=METRICS, select="hits@100")
MF_PREDICTOR = LinkPredictorConfig(dropout=0.0, lr=0.005, epochs=1000, eval_every=1, metrics=METRICS, select="hits@100")

SCRIPT = Script(
    file="examples/ogb/ppa.py",
    dataset="ogbl-ppa",
    recipes={
        "node2vec": LinkRecipe(NODE2VEC, PREDICTOR, features="raw"),
        "deepwalk": LinkRecipe(DEEPWALK, PREDICTOR, features="raw"),
        "mf": LinkRecipe(MatrixFactorizationConfig(dim=256, lr=0.005), MF_PREDICTOR),
    },
    description=__doc__,
    load=plain_graph("ogbl-ppa"),
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
