"""ogbn-mag: R-GCN with learned rows for nodes without features, or metapath2vec; accuracy of a paper's venue.

    python examples/ogb/mag.py --model rgcn --root data --out runs/ogbn-mag

``rgcn`` is DGL's examples/pytorch/ogb/ogbn-mag (hetero_rgcn.py), published at .4781: papers bring their 128 features,
the other 1,203,354 nodes have learned rows of 128 numbers, 2 layers of 64, neighbourhoods of 25 and 20 sampled by
relation, steps of 1,024 papers, 3 epochs, dropout 0.5, Adam 0.01 for network and rows. Every relation has its reverse;
citations go both ways within one relation. ``metapath2vec`` is metapath.py under mlp.py of OGB's
examples/nodeproppred/mag: 5 walks of 64 nodes from each author along a path of nine steps, 5 epochs; the MLP (3 layers
of 256, Adam 0.01, 500 epochs) reads a paper's features beside its embedding. What differs from the published recipes:

* R-GCN: Adam of the learned rows is sparse: rows outside a step keep still;
* R-GCN: a citation that stands in both directions counts twice in the mean over a relation;
* metapath2vec: trained again for every seed; --freeze-embedding keeps one, as the published row did;
* metapath2vec learns by plain SGD, 0.025 falling linearly, instead of sparse Adam 0.01; negatives are uniform over all
  nodes, where PyG draws those of a context's own type;
* metapath2vec counts the rows of all node types (248 million), the published 94,479,069 those of papers.

The learned rows of R-GCN and Adam's state for them take 1.7 GiB on the real set.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbn-mag", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
