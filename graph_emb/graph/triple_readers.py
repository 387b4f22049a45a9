"""Readers of knowledge graphs: folders of arrays, tab-separated files, OGB's biokg and wikikg2.

Legend: T triples, M given negatives.
"""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.triples import PARTS, GivenNegatives, KnowledgeGraph

if TYPE_CHECKING:
    import pyarrow as pa

ARRAYS = "triples.npz"
TEXT_SUFFIXES = (".tsv", ".txt", ".tsv.gz", ".txt.gz")
OGB_NAMES = ("ogbl-biokg", "ogbl-wikikg2")


def load_triples(name_or_path: str | Path, root: str | Path | None = None, *, download: bool = False) -> KnowledgeGraph:
    """A knowledge graph by its name or path; a path that exists wins.

    * a folder with ``triples.npz``: arrays ``train``, ``valid``, ``test`` of shape (T, 3), with ``entities.txt.gz``
      and ``relations.txt.gz`` (a name a line) where they are there;
    * a folder with ``train``, ``valid`` and ``test`` as ``.tsv`` or ``.txt``, also gzipped: head, relation and tail
      as names, separated by tabs. Names get numbers in order of their first appearance;
    * one such file, or one ``.npz``: training triples without held-out ones, or with the parts that it has;
    * ``ogbl-biokg`` and ``ogbl-wikikg2`` in OGB's layout under ``root``;
    * another name: the folder or file of that name under ``root``.

    Args:
        root: Folder of the named data sets; None: $GRAPH_EMB_DATA.
        download: Fetch an OGB data set that is not under ``root``.
    Raises:
        DataError: missing or damaged files, or ids that do not fit.
        ConfigError: download of a data set that is not OGB's.
    """
    name = str(name_or_path)
    ogb_name = Path(name).name.replace("_", "-")
    if ogb_name in OGB_NAMES:
        place = root if root is not None or not Path(name).is_dir() else Path(name).absolute().parent
        return _read_ogb(ogb_name, _root(ogb_name, place), download)
    if download:
        raise ConfigError(f"download=True: only OGB's data sets are downloaded, {name!r} is none of {OGB_NAMES}")
    return _read(_find(name, root))


def _root(name: str, root: str | Path | None) -> Path:
    found = os.environ.get("GRAPH_EMB_DATA") if root is None else root
    if found is None:
        raise DataError(f"data set {name!r} needs root=, the folder that holds {name.replace('-', '_')}/")
    return Path(found)


def _find(name: str, root: str | Path | None) -> Path:
    if Path(name).exists():
        return Path(name)
    if len(Path(name).parts) > 1 or Path(name).is_absolute():
        raise DataError(f"{name}: no such file or folder; check the name")
    folder = _root(name, root)
    for place in (folder / name, folder / name.replace("-", "_")):
        if place.exists():
            return place
    raise DataError(f"data set {name!r}: no {folder / name}; root= is the folder that holds it")


def _read(path: Path) -> KnowledgeGraph:
    if path.is_file():
        files = {"train": path}
        name = path.name.split(".")[0]
        if path.suffix == ".npz":
            return _read_arrays(name, path)
        if not path.name.endswith(TEXT_SUFFIXES):
            raise DataError(f"{path}: no file of triples; known: .npz, {', '.join(TEXT_SUFFIXES)}")
        return _read_text(name, files)
    if (path / ARRAYS).is_file():
        return _read_arrays(path.name, path / ARRAYS)
    named = {part: [path / f"{part}{suffix}" for suffix in TEXT_SUFFIXES] for part in PARTS}
    found = {part: next((file for file in files if file.is_file()), None) for part, files in named.items()}
    texts = {part: file for part, file in found.items() if file is not None}
    if "train" not in texts:
        raise DataError(f"{path}: holds neither {ARRAYS} nor train.tsv or train.txt; give the folder of the triples")
    return _read_text(path.name, texts)


def _read_arrays(name: str, file: Path) -> KnowledgeGraph:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            parts = {part: arrays[part] for part in PARTS if part in arrays.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read ({error}); the copy is damaged, get it again") from error
    if not parts:
        raise DataError(f"{file}: has none of the arrays {', '.join(PARTS)}; expected (T, 3) ids each")
    for part, triples in parts.items():
        if triples.dtype.kind not in "iu" or triples.ndim != 2 or triples.shape[1] != 3 or not len(triples):
            raise DataError(
                f"{file}: {part} has shape {triples.shape} of {triples.dtype}; expected (T, 3) of integers, T > 0"
            )
    parts = {part: triples.astype(np.int64) for part, triples in parts.items()}
    together = np.concatenate(list(parts.values()))
    entities, relations = _names(file.parent / "entities.txt.gz"), _names(file.parent / "relations.txt.gz")
    num_entities = int(together[:, [0, 2]].max()) + 1 if entities is None else len(entities)
    num_relations = int(together[:, 1].max()) + 1 if relations is None else len(relations)
    return KnowledgeGraph(name, num_entities, num_relations, parts, entities, relations)


def _names(file: Path) -> tuple[str, ...] | None:
    if not file.is_file():
        return None
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            return tuple(line.rstrip("\n") for line in lines)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); the copy is damaged, get it again") from error


def _read_text(name: str, files: dict[str, Path]) -> KnowledgeGraph:
    import pyarrow as pa

    tables = {part: _read_columns(file) for part, file in files.items()}
    heads_and_tails = [table.column(place) for table in tables.values() for place in (0, 2)]
    entity_ids, entities = _numbered(pa.chunked_array([c for column in heads_and_tails for c in column.chunks]))
    columns = [table.column(1) for table in tables.values()]
    relation_ids, relations = _numbered(pa.chunked_array([c for column in columns for c in column.chunks]))
    parts, entity_at, relation_at = {}, 0, 0
    for part, table in tables.items():
        size = len(table)
        ends = entity_ids[entity_at : entity_at + 2 * size].reshape(2, size)
        parts[part] = np.stack([ends[0], relation_ids[relation_at : relation_at + size], ends[1]], axis=1)
        entity_at, relation_at = entity_at + 2 * size, relation_at + size
    return KnowledgeGraph(name, len(entities), len(relations), parts, entities, relations)


def _read_columns(file: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    names = ["head", "relation", "tail"]
    try:
        table = csv.read_csv(
            file,
            csv.ReadOptions(column_names=names),
            csv.ParseOptions(delimiter="\t", quote_char=False),
            csv.ConvertOptions(column_types={name: pa.string() for name in names}, strings_can_be_null=False),
        )
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file}: {reason}; expected head, relation and tail in each line, separated by tabs") from None
    if not len(table):
        raise DataError(f"{file}: has no triples; expected at least 1")
    return table


def _numbered(names: pa.ChunkedArray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers in order of first appearance, int64, and the names in that order."""
    coded = names.dictionary_encode().unify_dictionaries().combine_chunks()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), tuple(coded.dictionary.to_pylist())


def _read_ogb(name: str, root: Path, download: bool) -> KnowledgeGraph:
    from graph_emb.compat import ogb

    if name == "ogbl-biokg":
        typed = ogb.read_hetero_dataset(name, root, download=download)
        counts, split = typed.num_nodes, typed.split
        ends = np.cumsum(list(counts.values()))
        starts = dict(zip(counts, (int(end - count) for end, count in zip(ends, counts.values(), strict=True)),
                          strict=True))  # fmt: skip
        num_entities = int(ends[-1])
    else:
        plain = ogb.read_link_dataset(name, root, download=download)
        num_entities, split, starts, counts = plain.num_nodes, plain.split, None, None
    parts, negatives = {}, {}
    for part, tables in split.items():
        first = {side: _first_ids(name, part, tables, side, starts, counts) for side in ("head", "tail")}
        columns = [tables["head"] + first["head"], tables["relation"], tables["tail"] + first["tail"]]
        parts[part] = np.stack(columns, axis=1)
        if "head_neg" in tables:
            shifted = [tables[f"{side}_neg"] + first[side][:, None] for side in ("head", "tail")]
            negatives[part] = GivenNegatives(*shifted)
    num_relations = int(parts["train"][:, 1].max()) + 1
    return KnowledgeGraph(name, num_entities, num_relations, parts, negatives=negatives, entity_types=starts)


def _first_ids(
    name: str,
    part: str,
    tables: dict[str, np.ndarray],
    side: str,
    starts: dict[str, int] | None,
    counts: dict[str, int] | None,
) -> np.ndarray:
    """The first entity of the type of each triple's end, shape (T,); OGB numbers each type from 0."""
    if starts is None or counts is None:
        return np.zeros(len(tables[side]), np.int64)
    kinds = tables[f"{side}_type"]
    unknown = set(np.unique(kinds)) - set(starts)
    if unknown:
        raise DataError(f"{name}, {part}: {side} type {sorted(unknown)[0]!r} has no entities; the files do not fit")
    first, limit = np.zeros(len(kinds), np.int64), np.zeros(len(kinds), np.int64)
    for kind, start in starts.items():
        first[kinds == kind], limit[kinds == kind] = start, counts[kind]
    for key in (side, f"{side}_neg"):
        local = tables.get(key)
        if local is not None and ((local < 0) | (local >= (limit if local.ndim == 1 else limit[:, None]))).any():
            raise DataError(f"{name}, {part}: an entity of {key} is outside its type; the files do not fit together")
    return first
