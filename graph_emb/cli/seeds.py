"""``graph-emb train --seeds``: one run for each seed, and the mean and spread of what they measured."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from graph_emb.config import RunConfig, config_from, read_config_file
from graph_emb.core.errors import ConfigError

FILE = "seeds.json"
READINGS = ("optimistic", "pessimistic")  # of ties; the table shows the value to report


def parse_seeds(text: str) -> list[int]:
    """Seeds of ``0,1,2`` or ``0-9``, each once.

    Raises:
        ConfigError: no such list.
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        if found is None:
            raise ConfigError(f"seeds {text!r}: write 0,1,2 or 0-9")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ConfigError(f"seeds {text!r}: {part.strip()} ends before it begins; write {last}-{first}")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds) or len(seeds) < 2:
        raise ConfigError(f"seeds {text!r}: give at least two, each once; for one there is --seed")
    return seeds


def words_of(words: Sequence[str], seed: int, out: Path) -> list[str]:
    """The command line of one seed: that of all of them with its own seed and folder."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("--seeds", "--out"):
            skip = True
        elif not word.startswith(("--seeds=", "--out=")):
            kept.append(word)
    return [*kept, "--seed", str(seed), "--out", str(out)]


def run_seeds(
    seeds: Sequence[int],
    out: Path,
    say: Callable[[str], None],
    run: Callable[[int, Path], int],
    finished: Callable[[int, Path], bool],
) -> int:
    """Run every seed into ``out/seed-<n>``, print the table, write ``out/seeds.json``; stops at the first failure.

    Args:
        seeds: At least two.
        out: Folder of the runs.
        say: Prints unless the user wants silence.
        run: Runs a seed into a folder and returns the exit code.
        finished: Whether a folder already holds the finished run of a seed, which is then kept.
    """
    from tabulate import tabulate

    from graph_emb.run.seeds import each_seed, summary  # here: the room imports torch

    def folder(seed: int) -> Path:
        return out / f"seed-{seed}"

    def one(seed: int) -> int:
        say(f"\n== seed {seed}")
        return run(seed, folder(seed))

    def kept(seed: int) -> int | None:
        if not finished(seed, folder(seed)):
            return None
        say(f"\n== seed {seed} is finished")
        return 0

    found = []
    for seed, code in each_seed(seeds, one, kept):
        if code != 0:
            return code
        metrics = json.loads((folder(seed) / "metrics.json").read_text(encoding="utf-8"))
        found.append(dict(measured(metrics["evaluation"])))
    common = [name for name in found[0] if all(name in one for one in found)]
    rows = {name: [one[name] for one in found] for name in common}
    numbers = {name: summary(values) for name, values in rows.items()}
    (out / FILE).write_text(json.dumps({"seeds": list(seeds), "metrics": numbers}, indent=2) + "\n", encoding="utf-8")
    table = [[name, row["mean"], row["std"]] for name, row in numbers.items()]
    print(f"\n{len(seeds)} seeds, unbiased std")
    print(tabulate(table, ["metric", "mean", "std"], floatfmt=".4f"))
    return 0


def is_finished(folder: Path, config: RunConfig) -> bool:
    """Whether the folder holds the finished and judged run of this very configuration."""
    from graph_emb.run.family import family_of
    from graph_emb.run.pipeline import FINISHED
    from graph_emb.run.run_folder import CONFIG

    try:
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        there = config_from(read_config_file(folder / CONFIG))
    except (OSError, ValueError):  # no run, or no whole one: running it says so
        return False
    done = metrics["status"] == FINISHED and "error" not in metrics["evaluation"]
    return done and there == family_of(config).config


def measured(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Every fraction among nested values with its dotted path; counts and other readings of ties are left out."""
    if isinstance(values, float):
        yield ".".join(path), values
        return
    items = enumerate(values) if isinstance(values, list) else values.items() if isinstance(values, dict) else ()
    for name, value in items:
        if name not in READINGS:
            yield from measured(value, (*path, str(name)))
