"""Kill ``partition.build`` at random moments: whatever is left, nothing incomplete passes ``verify``.

    python benchmarks/partition_kills.py --kills 100

Each round starts a build in a forked child (every second one over an older partition, with ``overwrite``), sends it
SIGKILL after a random share of the time that an undisturbed build takes, and looks at every folder that is there:
``verify`` must refuse it, or it must equal a whole partition byte for byte. The next build must succeed and clean up.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np


class Rounds:
    """Builds of one graph in forked children, which need not import or compile anything.

    Args:
        nodes, edges, parts: Of the graph.
        folder: Where everything happens.
    """

    def __init__(self, nodes: int, edges: int, parts: int, folder: Path) -> None:
        import partition

        rng = np.random.default_rng(0)
        self.graph = partition.HeteroGraph(
            {"_N": nodes},
            {("_N", "_E", "_N"): (rng.integers(0, nodes, edges), rng.integers(0, nodes, edges))},
            {"_N": {"feat": rng.random((nodes, 16), np.float32)}},
        )
        self.assignment = partition.Assignment({"_N": (np.arange(nodes) % parts).astype(np.int32)}, parts)
        self.out = folder / "out"

    def build(self, *, overwrite: bool) -> float:
        """Seconds of a build that nobody kills."""
        import partition

        began = time.perf_counter()
        partition.build(
            self.graph, out=self.out, assignment=self.assignment, report=False, overwrite=overwrite, progress=False
        )
        return time.perf_counter() - began

    def killed(self, seconds: float, *, overwrite: bool) -> bool:
        """Kill a build after some seconds; False when it had ended by then."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.build(overwrite=overwrite)
                code = 0
            finally:
                os._exit(code)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
            raise SystemExit("a build failed by itself")
        return os.WIFSIGNALED(status)

    def leftovers(self) -> list[Path]:
        """Every folder that somebody might take for a partition."""
        return [path for path in self.out.parent.iterdir() if path.is_dir()]


def accepted(folder: Path) -> bool:
    """Whether ``verify`` calls a folder sound."""
    import partition
    from graph_emb.core.errors import GraphEmbError

    try:
        return partition.verify(folder).sound
    except (GraphEmbError, OSError):
        return False


def fingerprint(folder: Path) -> str:
    """A checksum over the names and bytes of all files."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> int:
    """Run the rounds and print what was found; 1 when ``verify`` accepted something incomplete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=300_000)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the counts there")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    found = Counter({"kills": 0, "accepted but incomplete": 0, "overwritten without a replacement": 0})
    with tempfile.TemporaryDirectory() as name:
        rounds = Rounds(args.nodes, args.edges, args.parts, Path(name))
        rounds.build(overwrite=False)  # compiles and imports
        seconds = rounds.build(overwrite=True)
        whole = fingerprint(rounds.out)
        while found["kills"] < args.kills:
            overwrite = found["kills"] % 2 == 1
            if overwrite:
                rounds.build(overwrite=rounds.out.exists())
            else:
                shutil.rmtree(rounds.out, ignore_errors=True)
            if not rounds.killed(rng.uniform(0, seconds), overwrite=overwrite):
                found["ended before the kill"] += 1
                continue
            found["kills"] += 1
            for folder in rounds.leftovers():
                complete = fingerprint(folder) == whole
                found["complete folders" if complete else "incomplete folders"] += 1
                if accepted(folder) and not complete:
                    found["accepted but incomplete"] += 1
            if overwrite and not rounds.out.exists():
                found["overwritten without a replacement"] += 1
        rounds.build(overwrite=rounds.out.exists())
        found["folders after the last build"] = len(rounds.leftovers())
    for what, number in found.items():
        print(f"{number:6d} {what}")
    if args.json:
        Path(args.json).write_text(json.dumps({**vars(args), "seconds": seconds, **found}, indent=2) + "\n")
    return 1 if found["accepted but incomplete"] or found["overwritten without a replacement"] else 0


if __name__ == "__main__":
    sys.exit(main())
