"""Train a table of items whose ids nobody has counted, step by step as mxRec's page on dynamic expansion does.

    python examples/growing.py

mxRec (Huawei) trains such tables in TensorFlow on its accelerators: it is initialised with ``use_dynamic_expansion``, a
look-up also gives the address of each row, and an optimizer "by address" applies gradients to addresses. The numbered
steps below are those of its page. Beyond it: slots are checked, rows leave by a rule, and checkpoints are deltas.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import graph_emb as ge


def clicks(day: int, step: int, num: int, items: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Items that a step of a day shows, (num,) int64 far apart, and whether each was clicked, (num,) of 0 and 1.

    The items of a day are a window that moves by a quarter of it; two of three are liked, by a hidden rule of the id.
    """
    generator = torch.Generator().manual_seed(1000 * day + step)
    begin = day * items // 4
    numbers = torch.randint(begin, begin + items, (num,), generator=generator)
    return numbers * 10**12 - 7, (numbers % 3 > 0).float()


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Train over some days; the accuracy of the last day, the rows at its end, and the ids that were ever shown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40, help="a day")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--items", type=int, default=400, help="shown on a day; a quarter of them is new")
    parser.add_argument("--rule", default="lazy_adam", help="of create_hash_optimizer_by_address")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    args = parser.parse_args(argv)

    # 1. Initialise with dynamic expansion. USE_DYNAMIC_EXPANSION=1 in the environment does the same.
    ge.init(mode="local", use_dynamic_expansion=True)

    # 2. Create the table. Its number of rows bounds nothing, as device_vocabulary_size=1 does not there.
    first = ge.initializers.Normal(std=0.1, seed=0)
    item = ge.DistEmbedding(1, 8, "item", first, eviction=ge.Unused(steps=2 * args.steps, every=args.steps))

    # 3. Create the optimizer by address.
    optimizer = ge.create_hash_optimizer_by_address([item], args.rule, learning_rate=args.learning_rate)

    shown: set[int] = set()
    accuracy = 0.0
    with tempfile.TemporaryDirectory() as folder:
        last = None
        for day in range(args.days):
            right = 0
            for step in range(args.steps):
                ids, clicked = clicks(day, step, args.batch, args.items)
                # 4. Look up: rows, and in the place of addresses slots.
                rows, slots = item.lookup(ids)
                rows.requires_grad_()
                # 5. Compute the loss and the gradients of the rows.
                score = rows.sum(dim=1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(score, clicked)
                (gradients,) = torch.autograd.grad(loss, [rows])
                # 6. Apply them to the slots: no second look-up of the ids.
                optimizer.apply_gradients([(gradients, slots)])
                right += int(((score > 0) == (clicked > 0)).sum())
                shown.update(ids.tolist())
            accuracy = right / (args.steps * args.batch)
            # 7. Save: the first day whole, then what changed.
            last = ge.save_checkpoint(Path(folder, str(day)), tables=[item], optimizers=[optimizer], base=last)
            size = sum(file.stat().st_size for file in last.rglob("*") if file.is_file())
            print(f"day {day}: accuracy {accuracy:.3f}, {item.num_rows:,} rows, checkpoint of {size:,} bytes")
        # 8. Load the chain again.
        loaded = ge.load_checkpoint(last, tables=[item], optimizers=[optimizer])
        print(*loaded.report, sep="\n")
    found = {"accuracy": accuracy, "rows": item.num_rows, "shown": len(shown)}
    ge.shutdown()
    return found


if __name__ == "__main__":
    main()
