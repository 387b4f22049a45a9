"""PyKEEN's side of ``benchmarks/kge.py``: a process of its own, which needs numpy, torch and pykeen only.

Reads a JSON object of options from standard input and prints a JSON object: seconds of an epoch, and its triples.
"""

from __future__ import annotations

import json
import logging
import sys
import time

import numpy as np
import torch
from pykeen.losses import NSSALoss
from pykeen.models import ComplEx, DistMult, RotatE, SimplE, TransE
from pykeen.training import SLCWATrainingLoop
from pykeen.training.callbacks import TrainingCallback
from pykeen.triples import CoreTriplesFactory

MODELS = {
    "transe": (TransE, {"scoring_fct_norm": 1}, 1),
    "distmult": (DistMult, {}, 1),
    "complex": (ComplEx, {}, 2),
    "rotate": (RotatE, {}, 2),
    "simple": (SimplE, {}, 2),
}
"""The class, its arguments, and the numbers of our width in one of its dimensions."""


class EpochClock(TrainingCallback):
    """When each epoch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def post_epoch(self, epoch: int, epoch_loss: float, **kwargs: object) -> None:
        """PyKEEN's hook."""
        self.ends.append(time.perf_counter())


def main() -> None:
    """Time the second of two epochs: the first one has loaded, compiled and allocated what there is."""
    options = json.load(sys.stdin)
    logging.disable(logging.WARNING)
    torch.set_num_threads(options["threads"])
    triples = torch.from_numpy(np.load(options["triples"]))
    factory = CoreTriplesFactory(triples, num_entities=options["num_entities"], num_relations=options["num_relations"])
    kind, arguments, numbers = MODELS[options["model"]]
    loss = NSSALoss(margin=options["margin"], adversarial_temperature=1.0)
    dim = options["dim"] // numbers
    model = kind(triples_factory=factory, embedding_dim=dim, loss=loss, random_seed=0, **arguments).to("cpu")
    loop = SLCWATrainingLoop(
        model=model,
        triples_factory=factory,
        optimizer=torch.optim.Adagrad(model.parameters(), lr=0.1),
        negative_sampler="basic",
        negative_sampler_kwargs={"num_negs_per_pos": options["num_negatives"]},
    )
    clock, quiet = EpochClock(), {"use_tqdm": False, "use_tqdm_batch": False}
    loop.train(factory, num_epochs=2, batch_size=options["batch_size"], callbacks=[clock], **quiet)
    print(json.dumps({"seconds": clock.ends[1] - clock.ends[0], "triples": len(triples)}))


if __name__ == "__main__":
    main()
