"""No input gives a traceback, and none runs code: damaged graphs, rows, settings, checkpoints and partitions.

2,000 inputs here, the same each time; ``make fuzz`` tries 100,000 that nobody has tried before.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import graph_emb as ge
import partition
from graph_emb.checkpoint import manifest as manifests
from graph_emb.config import config_from, read_config_file
from graph_emb.core.errors import GraphEmbError
from graph_emb.formats.embedding_files import load_embeddings, save_embeddings
from graph_emb.graph.datasets import load_dataset
from tests.config.test_earlier_runs import COMPLEX, DEEPWALK, REST, SAGE
from tests.fuzz.damage import damaged, json_bytes, odd_document
from tests.graph.readers.samples import WRITERS
from tests.graph.test_one_graph import KINDS

INPUTS = int(os.environ.get("FUZZ_INPUTS", "2000"))
"""Over all tests of this file."""
BYTES_MORE = 4 << 30
"""What reading a damaged file may allocate: its numbers must not be believed."""
TRIPLES = b"a\tlikes\tb\nb\tlikes\tc\nc\tknows\ta\n"
RDF = b"<http://x/a> <http://x/p> <http://x/b> .\n"
RDF += b'<http://x/b> <http://x/q> "text"@en .\n_:n <http://x/p> <http://x/a> .\n'
TYPES = b"""
node_types: {user: {num_nodes: 3, ids: int}, item: {num_nodes: 2}}
edge_types:
  - {type: [user, buys, item], path: buys.csv, header: false}
"""


def fuzz(share: float) -> Callable[[Callable], Callable]:
    """A test's share of the inputs; drawn anew by ``make fuzz``, and the same ones each time in ``make test``."""
    return settings(
        max_examples=max(1, int(share * INPUTS)),
        deadline=None,
        derandomize="FUZZ_INPUTS" not in os.environ,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


@pytest.fixture(scope="module", autouse=True)
def limited_memory() -> Iterator[None]:
    """A file that makes a reader ask for more than 4 GiB ends in MemoryError, which is no clear line."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES_MORE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def one_line(work: Callable[[], Any]) -> Any:
    """The result, or None where the library's own error told it in one line."""
    try:
        return work()
    except GraphEmbError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    return None


class Bomb:
    """Leaves a file behind where a pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def write_graphs(folder: Path) -> None:
    """Small graphs in every format, one in a folder of its own each."""
    made = {f"kind {position}": (name, write) for position, (name, write, _) in enumerate(KINDS.values())}
    made |= {f"sample {suffix}": (f"g.{suffix}", write) for suffix, write in WRITERS.items()}
    made |= {
        kind: (name, lambda path, content=content: path.write_bytes(content))
        for kind, name, content in (("triples", "g.tsv", TRIPLES), ("rdf", "g.nt", RDF), ("types", "g.yaml", TYPES))
    }
    for kind, (name, write) in made.items():
        (folder / kind).mkdir(parents=True)
        write(folder / kind / name)


def check_graph(graph: Any) -> None:
    """Every end of every edge is a node."""
    for kind, (src, dst) in graph.edges.items():
        for ends, node_type in ((src, kind[0]), (dst, kind[2])):
            assert not len(ends) or (int(np.min(ends)) >= 0 and int(np.max(ends)) < graph.num_nodes[node_type])


@pytest.fixture(scope="module")
def samples(place: Path) -> Path:
    write_graphs(place / "samples")
    return place / "samples"


@fuzz(0.45)
@given(data=st.data())
def test_a_damaged_graph_is_one_line_or_a_graph(data: st.DataObject, place: Path, samples: Path) -> None:
    kinds = sorted(str(path.relative_to(samples)) for path in samples.glob("*/*"))
    kind, name = data.draw(st.sampled_from(kinds)).split("/")
    path = place / name
    path.write_bytes(data.draw(damaged((samples / kind / name).read_bytes())))
    options = {"format": "triples"} if kind == "triples" else {}
    graph = one_line(lambda: ge.read_graph(path, **options))  # a pickle is refused before a byte of it is read
    if graph is not None:
        check_graph(graph)


@fuzz(0.1)
@given(data=st.data())
def test_odd_values_in_a_graph_of_json(data: st.DataObject, place: Path) -> None:
    graph = nx.node_link_data(nx.path_graph(4), edges="links")
    graph["nodes"][0] |= {"label": 1, "type": "user"}
    graph["links"][0] |= {"weight": 0.5, "type": "likes"}
    path = place / "odd.json"
    path.write_bytes(data.draw(odd_document(graph).map(json_bytes)))
    found = one_line(lambda: load_dataset(path))
    if found is not None:
        check_graph(found.graph)


@fuzz(0.1)
@given(data=st.data())
def test_damaged_rows_are_one_line_or_rows(data: st.DataObject, place: Path) -> None:
    folder = place / "rows"
    if not folder.exists():
        rows = np.arange(12, dtype=np.float32).reshape(4, 3)
        save_embeddings(folder, rows, np.array(["a", "b", "c", "d"]), ("npy", "parquet", "word2vec", "pt"))
    files = sorted(file.name for file in folder.iterdir() if file.name.startswith("embeddings"))
    name = data.draw(st.sampled_from(files))
    path = place / name
    path.write_bytes(data.draw(damaged((folder / name).read_bytes())))
    found = one_line(lambda: load_embeddings(path))
    if found is not None:
        assert len(found.weights) == len(found.node_ids)


@fuzz(0.1)
@given(data=st.data())
def test_damaged_settings_are_one_line_or_settings(data: st.DataObject, place: Path) -> None:
    text = data.draw(st.sampled_from([REST + DEEPWALK, REST + COMPLEX, REST + SAGE]))
    path = place / "config.yaml"
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged(text.encode())))
    else:
        path.write_bytes(json_bytes(data.draw(odd_document(yaml.safe_load(text)))))
    config = one_line(lambda: config_from(read_config_file(path)))
    if config is not None:
        assert config_from(config.sections()) == config


@pytest.fixture(scope="module")
def checkpoint(place: Path) -> Path:
    ge.shutdown()
    ge.init(mode="local")
    emb = ge.DistEmbedding(6, 2, name="node", init_func=ge.initializers.Uniform(seed=0))
    opt = ge.SparseAdam([emb], lr=0.1)
    emb(torch.tensor([1, 2])).sum().backward()
    opt.step()
    ge.save_checkpoint(place / "checkpoint", tables=[emb], optimizers=[opt], step=1, extra={"note": [1, "a"]})
    return place / "checkpoint"


@fuzz(0.1)
@given(data=st.data())
def test_odd_values_in_a_checkpoint_that_repairs_its_checksums(
    data: st.DataObject, place: Path, checkpoint: Path
) -> None:
    copied = place / "checkpoint-copy"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(checkpoint, copied)
    manifest = copied / manifests.NAME
    content = data.draw(odd_document(json.loads(manifest.read_text())))
    content.pop(manifests.SELF, None)
    if data.draw(st.booleans()):
        content[manifests.SELF] = manifests._digest(content)
    manifest.write_bytes(json_bytes(content))
    ge.shutdown()  # the table of the input before is alive until the collector has run
    ge.init(mode="local")
    emb = ge.DistEmbedding(6, 2, name="node", init_func=ge.initializers.Uniform(seed=1))
    opt = ge.SparseAdam([emb], lr=0.1)
    one_line(lambda: ge.load_checkpoint(copied, tables=[emb], optimizers=[opt]))


@pytest.fixture(scope="module")
def parts(place: Path) -> Path:
    (place / "cycle.txt").write_text("".join(f"{i} {(i + 1) % 12}\n" for i in range(12)))
    partition.build(place / "cycle.txt", num_parts=2, out=place / "parts", seed=0, progress=False)
    return place / "parts"


@fuzz(0.15)
@given(data=st.data())
def test_a_damaged_partition_that_repairs_its_checksums(data: st.DataObject, place: Path, parts: Path) -> None:
    copied = place / "parts-copy"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(parts, copied)
    files = sorted(
        str(file.relative_to(parts)) for file in parts.rglob("*") if file.suffix in (".json", ".dgl", ".npy")
    )
    name = data.draw(st.sampled_from(files))
    content = (parts / name).read_bytes()
    if name.endswith(".json") and data.draw(st.booleans()):
        content = data.draw(odd_document(json.loads(content)).map(json_bytes))
    else:
        content = data.draw(damaged(content))
    (copied / name).write_bytes(content)
    manifest = json.loads((parts / "manifest.json").read_text())
    if name in manifest["files"]:
        manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (copied / "manifest.json").write_bytes(json_bytes(manifest))

    def use() -> None:
        whole = partition.load(copied)
        whole.books["_N"].owner(torch.arange(12))

    one_line(use)
    one_line(lambda: partition.verify(copied, progress=False))


@pytest.mark.parametrize("suffix", sorted({*WRITERS, "pt", "npy", "yaml"}))
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_no_pickle_runs_whatever_its_name_is(suffix: str, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    bombs = {
        "bare": pickle.dumps(Bomb(mark), protocol),
        "array": _object_array(tmp_path, Bomb(mark)),
    }
    for kind, content in bombs.items():
        path = tmp_path / f"{kind}.{suffix}"
        path.write_bytes(content)
        for read in (ge.read_graph, load_dataset, load_embeddings, read_config_file):
            one_line(lambda path=path, read=read: read(path))
        assert not mark.exists()


def _object_array(folder: Path, value: Any) -> bytes:
    path = folder / "object.npz"
    np.savez(path, indptr=np.array([value], dtype=object), indices=np.array([value], dtype=object))
    return path.read_bytes()
