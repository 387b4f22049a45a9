"""ogbl-collab: node2vec, DeepWalk or matrix factorisation, then OGB's link predictor; Hits@50.

    python examples/ogb/collab.py --model node2vec --root data --out runs/ogbl-collab

Recipes: node2vec.py and mf.py of OGB's examples/linkproppred/collab and DGL's examples/pytorch/ogb/deepwalk, under
OGB's mlp.py, which reads the 128 features of an author beside the embedding. What differs from the published recipes:

* the embedding is trained again for every seed; --freeze-embedding keeps one, as the published rows did;
* a pair that wrote together in several years is one edge, weighted by the number of papers; OGB repeats the edge;
* walk models learn by plain SGD, falling linearly, instead of sparse Adam 0.01 (node2vec) and row-wise Adagrad 0.1
  (DeepWalk, whose Laplacian term is left out; the sum of token and context rows stands for it);
* negatives of the predictor are non-edges; OGB draws pairs that may be edges (1 in 28,000 is);
* the loss is taken on logits: log(sigmoid + 1e-15) saturates;
* the rows of matrix factorisation learn by sparse Adam: rows outside a batch keep still.

Validation edges are held out. The rules allow them in training once all hyper-parameters are fixed, and with
`--set "validation_edges=trained on"` a second training does that, for as many epochs as the first one chose; its test
value is reported, beside the first one's validation value.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbl-collab", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
