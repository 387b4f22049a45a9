"""OGB's leaderboard rules: refusals of what they forbid, notes on what must be disclosed.

Source: ogb.stanford.edu/docs/leader_overview and leader_rules: seeds not fixed, or exactly 0 to 9, and not tuned; the
test set for nothing but the final number; validation edges only for choosing, except in ogbl-collab once all
hyper-parameters are fixed; a release of ogb that judges as the leaderboard does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from graph_emb.compat.ogb import metadata
from graph_emb.core.errors import ConfigError
from graph_emb.ogb.record import SeedRecord, differences

NUM_SEEDS = 10
FEWER_SEEDS = {"ogbn-papers100M": 3}
TRAINING_ON_VALIDATION = ("ogbl-collab",)
LEAST_OGB = {
    "ogbl-ddi": (1, 2, 1),
    "ogbl-collab": (1, 2, 1),
    "ogbl-citation2": (1, 2, 4),
    "ogbl-wikikg2": (1, 2, 4),
    "ogbl-vessel": (1, 3, 4),
}
MRR_OGB = (1, 3, 4)
"""The release since which OGB's MRR counts ties as half."""


def check(records: Sequence[SeedRecord], *, partial: bool = False) -> list[str]:
    """Refuse what the rules forbid.

    Args:
        records: All seeds of one method, in any order.
        partial: Accept fewer seeds than the rules ask for, or others than 0 to 9.
    Returns:
        Notes to publish with the numbers.
    Raises:
        ConfigError: a rule is broken; the message names it and the seed.
    """
    if not records:
        raise ConfigError("no records; give the folder that a script of examples/ogb wrote its seeds to")
    results = [record.finished() for record in records]
    _check_alike(records)
    name, said = records[0].dataset, {record.settings_selected_on for record in records}
    wanted = metadata(name).eval_metric
    least = max(LEAST_OGB.get(name, (0,)), MRR_OGB if wanted == "mrr" else (0,))
    for record, result in zip(records, results, strict=True):
        seed, used = f"seed {record.seed}", record.versions.get("ogb", "not installed")
        if result.metric != wanted:
            raise ConfigError(f"{seed} reports {result.metric}; {name} is judged by {wanted}")
        if result.selected_on == "test":
            raise ConfigError(f"{seed}: its epoch was chosen by test values; OGB asks for validation values")
        if record.settings_selected_on == "test":
            raise ConfigError(
                f"{seed}: its settings were chosen by test values; choose them on validation and run again"
            )
        if least > (0,) and _numbers(used) < least:
            text = ".".join(map(str, least))
            raise ConfigError(f"{seed} was judged under ogb {used}; {name} needs {text} or later")
    if len(said) > 1:
        raise ConfigError(f"the seeds disagree on how settings were chosen: {', '.join(sorted(said))}")
    if records[0].validation_edges == "trained on" and name not in TRAINING_ON_VALIDATION:
        allowed = ", ".join(TRAINING_ON_VALIDATION)
        raise ConfigError(f"{name}: validation edges were trained on; the rules allow that for {allowed} only")
    return [*_check_seeds(records, partial), *_notes(records)]


def _check_alike(records: Sequence[SeedRecord]) -> None:
    first = records[0]
    for name, word in (("dataset", "data sets"), ("model", "models"), ("validation_edges", "uses of validation edges")):
        values = sorted({str(getattr(record, name)) for record in records})
        if len(values) > 1:
            raise ConfigError(f"the records are of several {word}, {' and '.join(values)}; report each by itself")
    for record in records[1:]:
        found = differences(first.settings, record.settings)
        if found:
            path, (one, other) = next(iter(found.items()))
            raise ConfigError(
                f"seeds {first.seed} and {record.seed} have different settings: {path} is {one!r} and {other!r}; "
                "a report is of one setting"
            )
    frozen = {record.embedding_seed for record in records if record.frozen}
    if frozen and {record.embedding_seed for record in records} != frozen:
        raise ConfigError(
            "some seeds trained their own embedding and others took that of another; report each by itself"
        )
    counts = {tuple(sorted(record.finished().parameters.items())) for record in records}
    if len(counts) > 1:
        raise ConfigError("the seeds have different numbers of parameters; they are not one method")


def _check_seeds(records: Sequence[SeedRecord], partial: bool) -> list[str]:
    seeds = sorted(record.seed for record in records)
    repeated = [seed for seed, count in Counter(seeds).items() if count > 1]
    if repeated:
        raise ConfigError(f"seed {repeated[0]} is there {seeds.count(repeated[0])} times; give each seed once")
    wanted = list(range(FEWER_SEEDS.get(records[0].dataset, NUM_SEEDS)))
    if seeds == wanted:
        return []
    told = f"seeds {', '.join(map(str, seeds))} instead of {wanted[0]} to {wanted[-1]}"
    if not partial:
        raise ConfigError(f"{told}; run the others, or report these with --partial, which the record then says")
    return [f"PARTIAL: {told}. This is no submission to a leaderboard."]


def _notes(records: Sequence[SeedRecord]) -> list[str]:
    notes, first = [], records[0]
    if any(record.frozen for record in records):
        notes.append(
            f"One embedding, of seed {first.embedding_seed}, lies under all seeds, as in OGB's own scripts: "
            "the standard deviation does not contain that of the embedding."
        )
    if first.validation_edges == "trained on":
        notes.append(
            "Validation edges were trained on after all hyper-parameters were fixed, which this data set allows."
        )
    if first.finished().selected_on == "none":
        notes.append("No epoch was chosen: values are those after the last one.")
    for word, values in (
        ("machines", {record.hardware.model_dump_json() for record in records}),
        ("versions", {str(sorted(record.versions.items())) for record in records}),
        ("commands", {record.command for record in records}),
    ):
        if len(values) > 1:
            notes.append(f"The seeds ran under {len(values)} {word}; all are listed.")
    return notes


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
