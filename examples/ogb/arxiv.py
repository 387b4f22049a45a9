"""ogbn-arxiv: DeepWalk of the citations alone, node2vec or LINE with features, then OGB's MLP; accuracy.

    python examples/ogb/arxiv.py --root ../shared/data --out runs/ogbn-arxiv

``node2vec`` is the published recipe, node2vec.py under mlp.py (3 layers of 256, batch norm, dropout 0.5, Adam 0.01, 500
epochs) of OGB's examples/nodeproppred/arxiv, which reads the 128 features of a paper beside the embedding. ``deepwalk``
asks how far citations alone go: no features, two tables, window 5, 10 walks of 40 nodes. Walks go along citations in
both directions. ``line`` is DGL's examples/pytorch/ogb/line, 1,000 million samples with 5 negatives,
under the same MLP with features. What differs from the published recipes:

* the embedding is trained again for every seed; --freeze-embedding keeps one, as the published row did;
* node2vec learns by plain SGD, 0.025 falling linearly, instead of Adam 0.01, from both sides of a window;
* LINE learns by SGD, 0.05 falling linearly, and its rows are scaled to length 1 for each order; DGL's SGD of 0.2 has a
  Laplacian term instead.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbn-arxiv", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
