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

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbl-ppa", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
