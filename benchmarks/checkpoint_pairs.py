"""Save at every layout, load at every layout: 28 x 28 pairs of parts, ranks and modes.

    python benchmarks/checkpoint_pairs.py

Layouts: parts 1 to 4; ranks 1, 2 and 4 (local mode: 1); local, collective and kvstore mode, the last with a server for
each part. Every layout partitions by other random parts. For each pair the loaded rows, optimizer states and learning
rates, and those ten steps later, must equal the uninterrupted run of one process bit for bit (float64). Prints how
many pairs do; the exit code is 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))  # the layouts are those of the tests


def main(argv: list[str] | None = None) -> int:
    """Run every pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there")
    args = parser.parse_args(argv)

    from tests.checkpoint.layouts import EVERY, everywhere, reference
    from tests.ranks import Ranks
    from tests.transport.kvstore.cluster import close_idle

    began, expected, ranks, wrong = time.perf_counter(), reference(), Ranks(), []
    try:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            for layout in EVERY:
                wrong += everywhere("save_at", layout, folder, expected, ranks=ranks)
            saved = [folder / layout.name for layout in EVERY]
            for layout in EVERY:
                found = everywhere("load_at", layout, saved, expected, ranks=ranks)
                print(f"{layout.name}: {len(saved)} checkpoints loaded, {len(found)} differences", flush=True)
                wrong += found
    finally:
        ranks.close()
        close_idle()
    result = {"pairs": len(EVERY) ** 2, "differences": wrong, "seconds": round(time.perf_counter() - began, 1)}
    print(f"{result['pairs']} pairs, {len(wrong)} differences, {result['seconds']} s")
    for line in wrong[:20]:
        print(line)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
