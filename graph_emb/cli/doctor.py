"""``graph-emb doctor``: this machine, its packages, whether jobs of two processes work, and what dead ones left."""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from graph_emb import compat
from graph_emb.cli.info import installation, print_facts
from graph_emb.core.errors import ConfigError
from graph_emb.core.left_behind import SHARED_MEMORY, left_in
from graph_emb.core.terminal import say

INSTRUCTIONS = ("avx512f", "avx2", "fma", "sve", "asimd")
"""Vector instructions that kernels gain from, by their names in /proc/cpuinfo."""
OPTIONAL = {
    "pymetis": ("partition by METIS", "pip install pymetis"),
    "kaminpar": ("partition by KaMinPar", "pip install kaminpar"),
    "mtkahypar": ("partition by Mt-KaHyPar", "pip install mtkahypar"),
    "hnswlib": ("neighbors --index hnswlib", "pip install 'graph_emb[hnswlib]'"),
    "faiss": ("neighbors --index faiss", "pip install 'graph_emb[faiss]'"),
    "umap": ("UMAP maps in report.html", "pip install umap-learn"),
}
"""Packages that some options need: what for, and the command that installs it."""
LEAST_FILES, LEAST_SHARED = 1024, 2**28
CHECK_S = 60
"""Seconds after which a job of two processes counts as hanging."""
JOBS = {
    "two trainers, collective": ("--trainers", "2", "--mode", "collective"),
    "a server, kvstore": ("--trainers", "2", "--mode", "kvstore", "--servers", "1"),
}


def run(args: argparse.Namespace) -> int:
    """Describe the machine, say what is wrong, list or remove what killed processes left; 1 where a check failed."""
    for name in args.folders:
        if not Path(name).is_dir():
            raise ConfigError(f"doctor: {name} is no folder")
    print_facts({**installation(), **machine()})
    worries = [*complaints()]
    if args.jobs:
        say(args, "graph-emb: starting two small jobs")
        worries += [*failed_jobs()]
    for worry in worries:
        print(f"! {worry}")
    for package, (use, command) in OPTIONAL.items():
        if find_spec(package) is None:
            print(f"optional: {use}: {command}")
    _left_behind(args)
    return 1 if worries else 0


def machine() -> dict[str, Any]:
    """Instruction set, shared memory and limits."""
    facts: dict[str, Any] = {"instructions": ", ".join(instructions()) or "unknown"}
    with suppress(OSError):
        usage = psutil.disk_usage(str(SHARED_MEMORY))
        facts["shared memory"] = f"{usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free in {SHARED_MEMORY}"
    files, processes = resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_NPROC)[0]
    facts["limits"] = f"{_limit(files)} open files, {_limit(processes)} processes"
    return facts


def instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The vector instructions of this processor, of those in ``INSTRUCTIONS``."""
    try:
        words = set(cpuinfo.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return []
    return [name for name in INSTRUCTIONS if name in words]


def _limit(value: int) -> str:
    return "any number of" if value == resource.RLIM_INFINITY else f"{value:,}"


def complaints() -> Iterator[str]:
    """What would stop some runs, each with the next step."""
    compat.prepare()
    for package in ("dgl", "ogb"):
        try:
            importlib.import_module(package)
        except Exception as error:  # whatever an import raises is what the user would see
            reason = " ".join(str(error).split()) or type(error).__name__
            yield f"{package} cannot be imported ({reason}): pip install --force-reinstall graph_emb"
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < LEAST_FILES:
        yield f"only {files} open files are allowed; jobs of many trainers need more: ulimit -n 4096"
    with suppress(OSError):
        free = psutil.disk_usage(str(SHARED_MEMORY)).free
        if free < LEAST_SHARED:
            yield (
                f"{SHARED_MEMORY} has {free / 2**20:.0f} MiB free; trainers exchange rows there: in a container, "
                "start it with --shm-size, or set GRAPH_EMB_SHARED_MEMORY=0"
            )


def failed_jobs(timeout: float = CHECK_S) -> Iterator[str]:
    """Train a ring of 64 nodes in both modes; a job that fails or hangs is named with its last line."""
    with tempfile.TemporaryDirectory(prefix="graph-emb-doctor-") as folder:
        ring = Path(folder, "ring.csv")
        ring.write_text("".join(f"{n},{(n + 1) % 64}\n" for n in range(64)))
        words = [sys.executable, "-m", "graph_emb", "-q", "train", "deepwalk", "--dataset", str(ring), "--no-eval"]
        sizes = ["model.dim=8", "model.num_walks=1", "model.walk_length=8", "train.rule=adagrad", "output.report=none"]
        environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        for place, (name, flags) in enumerate(JOBS.items()):
            command = [*words, *flags, "--out", str(Path(folder, f"run-{place}")), *sizes]
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            try:
                told, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.terminate()  # the launcher ends its processes
                process.communicate()
                yield f"{name}: no end within {timeout:.0f} s; is the address of localhost reachable?"
                continue
            if process.returncode:
                last = told.strip().splitlines()[-1] if told.strip() else f"exit code {process.returncode}"
                yield f"{name}: {last}"
            else:
                print(f"works: {name}")


def _left_behind(args: argparse.Namespace) -> None:
    folders = [Path(name) for name in args.folders or (".", "runs", tempfile.gettempdir())]
    found = False
    for path in left_in(folders, remove=args.clean):
        found = True
        print("removed" if args.clean else "left by a killed process:", path)
    if not found:
        print(f"no killed process left anything in {', '.join(map(str, folders))} or {SHARED_MEMORY}")
    elif not args.clean:
        print(f"graph-emb doctor --clean {shlex.join(args.folders)}".rstrip(), "removes it")
