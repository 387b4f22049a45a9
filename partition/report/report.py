"""The numbers of one partition, as a table, as JSON and as a page with charts."""

# P parts, L nodes of a walk

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graph_emb.core.storage import replace_text
from partition.report.forecast import WalkForecast
from partition.report.metrics import Cut
from partition.report.sampling import SampleForecast

Row = tuple[str, str, str]


@dataclass(frozen=True)
class Quality:
    """Counts and forecasts of one assignment; ``hops`` has one forecast for each hop of the sampling."""

    cut: Cut
    walks: WalkForecast
    hops: tuple[SampleForecast, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        cut, walks = self.cut, self.walks
        return {
            "cut_ratio": cut.cut,
            "cut_by_relation": {":".join(etype): share for etype, share in cut.cut_by_relation.items()},
            "balance": dict(cut.balance),
            "nodes": cut.nodes.tolist(),
            "edges": cut.edges.tolist(),
            "edge_matrix": cut.edge_matrix.tolist(),
            "halo": cut.halo.tolist(),
            "halo_inbound": cut.halo_inbound.tolist(),
            "replication_factor": cut.replication_factor,
            "replication_factor_inbound": cut.replication_factor_inbound,
            "walks": {
                "remote_share": walks.share,
                "num_simulated": walks.num_simulated,
                "remote_share_by_step": [
                    float(remote / visits) if visits > 0 else 0.0
                    for remote, visits in zip(walks.remote, walks.visits, strict=True)
                ],
                "remote_share_by_part": walks.by_part.tolist(),
            },
            "sampling": [
                {
                    "hops": hop + 1,
                    "remote_share": forecast.share,
                    "rows_per_batch": forecast.rows.tolist(),
                    "remote_rows_per_batch": forecast.remote.tolist(),
                    "batches_per_epoch": forecast.batches.tolist(),
                }
                for hop, forecast in enumerate(self.hops)
            ],
        }


@dataclass(frozen=True)
class PartitionReport:
    """One partition of one graph, compared with random parts of equal size; without times: the same for a seed.

    Attributes:
        counts: What the reader dropped, merged or added.
        why: Why this method.
        given, random: The same numbers of both.
        walk_length, fanouts, batch_size, is_weighted, seeds: What the forecasts assume.
        vertex_cut: Replication and edge balance of HDRF, where it was asked for.
    """

    name: str
    num_nodes: dict[str, int]
    num_edges: dict[str, int]
    counts: dict[str, int]
    num_parts: int
    method: str
    why: str
    seed: int
    given: Quality
    random: Quality
    walk_length: int
    fanouts: tuple[int, ...]
    batch_size: int
    is_weighted: bool
    seeds: str
    vertex_cut: dict[str, float] | None

    def facts(self) -> list[tuple[str, str]]:
        """Graph, parts and method, a name and a text each."""
        facts = [
            ("graph", self.name),
            ("nodes", _counted(self.num_nodes)),
            ("edges", _counted(self.num_edges)),
            ("parts", str(self.num_parts)),
            ("method", f"{self.method}, seed {self.seed}"),
            ("why", self.why),
        ]
        facts += [(what, f"{number:,}") for what, number in self.counts.items()]
        if self.vertex_cut is not None:
            replication, balance = self.vertex_cut["replication_factor"], self.vertex_cut["edge_balance"]
            facts.append(("vertex-cut (HDRF)", f"{replication:.3f} replicas of a node, edge balance {balance:.3f}"))
        return [fact for fact in facts if fact[1]]

    def rows(self) -> list[Row]:
        """Each number with its value for this partition and for random parts."""
        given, random = self._numbers(self.given), self._numbers(self.random)
        return [(label, own, other) for (label, own), (_, other) in zip(given, random, strict=True)]

    def _numbers(self, quality: Quality) -> list[tuple[str, str]]:
        cut = quality.cut
        numbers = [("cut edges", _percent(cut.cut))]
        if len(cut.cut_by_relation) > 1:
            numbers += [(f"  {':'.join(etype)}", _percent(share)) for etype, share in cut.cut_by_relation.items()]
        numbers += [(f"balance of {_spelled(kind)}", f"{value:.3f}") for kind, value in cut.balance.items()]
        numbers += [
            ("copies of a node (DGL's halo)", f"{cut.replication_factor:.3f}"),
            ("copies of a node (inbound halo)", f"{cut.replication_factor_inbound:.3f}"),
            ("largest halo, nodes", f"{int(cut.halo.max()):,}"),
            (f"remote rows of walks of {self.walk_length}", _percent(quality.walks.share)),
        ]
        for hop, forecast in enumerate(quality.hops):
            shown = ", ".join(map(str, self.fanouts[: hop + 1]))
            numbers.append((f"remote rows of {hop + 1}-hop samples ({shown})", _percent(forecast.share)))
        return numbers

    def table(self) -> str:
        """Facts and numbers as text for a terminal."""
        from tabulate import tabulate

        facts = tabulate(self.facts(), tablefmt="plain")
        numbers = tabulate(
            self.rows(),
            headers=["", self.method, "random"],
            tablefmt="simple",
            colalign=("left", "right", "right"),
            disable_numparse=True,
            preserve_whitespace=True,
        )
        return f"{facts}\n\n{numbers}\n\n{self.assumptions()}"

    def assumptions(self) -> str:
        """Assumptions of the forecasts, in two sentences."""
        weights = "edge weights" if self.is_weighted else "edges at equal chance"
        simulated = self.given.walks.num_simulated
        how = f"{simulated:,} simulated" if simulated else "exact"
        return (
            f"Walks: one from each node, worked at the part of its start, {weights}; every visit counts, {how}. "
            f"Samples: batches of {self.batch_size} seeds of one part ({self.seeds}), distinct input rows, "
            "the mean of sampled batches."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, lists and texts."""
        fields = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("given", "random", "fanouts")
        }
        return fields | {
            "fanouts": list(self.fanouts),
            "assumptions": self.assumptions(),
            "given": self.given.to_dict(),
            "random": self.random.to_dict(),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON text, also written to ``path`` where one is given."""
        return written(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", path)


def written(text: str, path: str | Path | None) -> str:
    """The text, also written to ``path`` where one is given: complete or not at all."""
    if path is not None:
        replace_text(path, text)
    return text


def _counted(numbers: dict[str, int]) -> str:
    total = f"{sum(numbers.values()):,}"
    return total if len(numbers) == 1 else f"{total} of {len(numbers)} types"


def _spelled(kind: str) -> str:
    name = {"train": "train nodes", "valid": "validation nodes", "test": "test nodes"}.get(kind, kind)
    return f"type {kind.removeprefix('type:')}" if kind.startswith("type:") else name


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
