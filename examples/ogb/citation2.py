"""ogbl-citation2: node2vec, DeepWalk or matrix factorisation, then OGB's link predictor; MRR.

    python examples/ogb/citation2.py --model node2vec --root data --out runs/ogbl-citation2

Each citation of the validation and test parts is ranked among 1,000 papers that its source does not cite; a tie counts
half. Recipes: node2vec.py and mf.py of OGB's examples/linkproppred/citation2, under OGB's mlp.py, which reads the 128
features of a paper beside the embedding and is trained against random targets of the same source. Walks go along
citations in both directions. What differs from the published recipes:

* the embedding is trained again for every seed; --freeze-embedding keeps one, as the published rows did;
* walk models learn by plain SGD, falling linearly, instead of sparse Adam 0.01;
* the loss is taken on logits: log(sigmoid + 1e-15) saturates;
* the rows of matrix factorisation learn by sparse Adam: rows outside a batch keep still;
* DeepWalk has no published row on this release; its recipe is DGL's for the withdrawn first one (window 2, 10 walks of
  80 nodes), without the Laplacian term.

The real set has 2,927,963 papers and 30 million citations; an evaluation scores 86,596 times 1,000 pairs.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbl-citation2", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
