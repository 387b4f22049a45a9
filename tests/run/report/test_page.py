"""A run's page tells what metrics.json, metrics.jsonl and the tables hold, by itself, and nothing breaks it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import DataError
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.labels import Labels
from graph_emb.run.pipeline import PipelineResult, pipeline
from graph_emb.run.report.facts import RunFacts, classes_of, labels_of, read_history
from graph_emb.run.report.page import MOST_ON_MAP, report_page, table
from graph_emb.run.run_folder import read_metrics
from tests.run.report.conftest import NASTY


def page_of(run: PipelineResult) -> str:
    assert run.folder is not None
    return (run.folder / "report.html").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_holds_scores_curves_map_neighbours_and_settings(run: PipelineResult) -> None:
    text = page_of(run)
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == ["Scores", "Training", "Map", "Nearest neighbours", "Configuration", "Versions and files"]
    assert "<figcaption>loss</figcaption>" in text
    score = run.metrics["evaluation"]["node_classification"]["ratios"][0]["micro_mean"]
    assert f'<td>micro-F1 at 50%</td><td class="n">{score:.4f}' in text
    assert "node classification by degree" in text
    assert "<td>model.dim</td><td>8</td><td>128</td>" in text
    names = {own.get("data-name") for tag, own in Tags(text).found if tag == "circle" and "data-name" in own}
    assert names == {NASTY, *(f"a{i}" for i in range(1, 8)), *(f"b{i}" for i in range(8))}
    assert run.folder is not None
    assert "report.html" in read_metrics(run.folder)["files"]
    assert "t-SNE of all rows" in text


def test_the_page_needs_no_other_file_and_takes_no_name_for_markup(run: PipelineResult) -> None:
    text = page_of(run)
    for tag, own in Tags(text).found:
        assert tag not in ("img", "iframe", "object", "embed", "em", "base")
        assert not any(name in own for name in ("src", "onload", "onclick"))
        assert (own.get("href") or "data:").startswith("data:")
    assert "http" not in text
    assert NASTY not in text
    assert len(text) < 5 * 2**20


def test_scores_have_the_same_digits_and_long_names_their_ends(run: PipelineResult) -> None:
    """0.59 stood below 0.5775; all papers of AIFB were http://www.aifb.uni-karlsruhe.de/Publikationen/viewPubli..."""
    cells = re.findall(r'<td class="n">([^<]*)<', table(("a",), [[0.59, 0.5775, 1.0, 0.0, 3e-5, 12, 1234.5]]))
    assert cells == ["0.5900", "0.5775", "1.0000", "0", "3e-05", "12", "1,234.5"]
    ids = np.array([f"http://example.org/{'publications/' * 5}id{n}instance" for n in range(9)])
    tables = {"node": Embeddings(np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), ids)}
    text = report_page(RunFacts("papers", run.config, run.metrics, [], tables, {}))
    names = {own["data-name"] or "" for tag, own in Tags(text).found if tag == "circle" and "data-name" in own}
    assert len(names) == 9
    assert all(re.fullmatch(r"http://exam.*\.\.\..*id\dinstance", name) and len(name) == 60 for name in names), names


def test_a_large_table_is_drawn_in_part_with_its_labelled_rows_first(run: PipelineResult) -> None:
    rows = np.random.default_rng(0).normal(size=(40_000, 4)).astype(np.float32)
    classes = np.full(len(rows), -1)
    classes[-5:] = 0
    tables = {"node": Embeddings(rows, np.arange(len(rows)))}
    long = [{"epoch": n, "loss": 1.0, "elapsed": float(n), "memory_mib": n} for n in range(50_000)]
    facts = RunFacts("big", run.config, run.metrics, long, tables, {"node": Labels.from_single(classes)})
    text = report_page(facts)
    names = {own["data-name"] for tag, own in Tags(text).found if tag == "circle" and "data-name" in own}
    assert len(names) == MOST_ON_MAP
    assert {str(node) for node in range(39_995, 40_000)} <= names
    assert "PCA of 2,500 of 40,000 rows" in text
    assert len(text) < 5 * 2**20


@pytest.mark.parametrize(
    ("rows", "message"), [(np.ones((2, 3)), "fewer than three"), (np.full((4, 3), np.nan), "not finite")]
)
def test_rows_without_a_map_are_said(run: PipelineResult, rows: np.ndarray, message: str) -> None:
    tables = {"node": Embeddings(rows.astype(np.float32), np.arange(len(rows)))}
    assert message in report_page(RunFacts("x", run.config, run.metrics, [], tables))


def test_an_unjudged_run_and_one_that_could_not_be_judged_say_so(run: PipelineResult) -> None:
    facts = RunFacts("x", run.config, {**run.metrics, "evaluation": {}}, [])
    assert "Nothing was judged" in report_page(facts)
    assert "logged 0 lines" in report_page(facts)
    failed = replace(facts, metrics={**run.metrics, "evaluation": {"error": "no <labels>"}})
    assert "not evaluated: no &lt;labels&gt;" in report_page(failed)


def test_no_page_is_written_where_none_is_wanted_and_umap_is_refused_before_training(
    run: PipelineResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"model": "deepwalk", "dataset": run.config.dataset.name, "dim": 4, "num_walks": 1, "walk_length": 4}
    found = pipeline(**held, evaluate=False, out=tmp_path / "none", report="none")
    assert found.folder is not None
    assert not (found.folder / "report.html").exists()
    monkeypatch.setattr("graph_emb.evaluate.projection.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="umap-learn"):
        pipeline(**held, evaluate=False, out=tmp_path / "umap", report="umap")
    assert not (tmp_path / "umap").exists()


def test_a_page_that_cannot_be_made_does_not_cost_the_rows(
    run: PipelineResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DataError("no page today")

    monkeypatch.setattr("graph_emb.run.pipeline.write_report", fail)
    sizes = {"dim": 4, "num_walks": 1, "walk_length": 4}
    found = pipeline("deepwalk", run.config.dataset.name, out=tmp_path / "run", evaluate=False, **sizes)
    assert found.folder is not None
    assert (found.folder / "embeddings.npy").is_file()


def test_classes_come_by_size_and_a_node_of_several_takes_the_largest() -> None:
    labels = Labels.from_lists([[0, 2], [2], [1, 2], [0], []], 4, ["zero", "one", "two", "unused"])
    classes, names = classes_of(labels)
    assert names == ["two", "zero", "one"]
    assert classes.tolist() == [0, 0, 0, 1, -1]


def test_labels_of_another_number_of_nodes_are_left_out(run: PipelineResult) -> None:
    labels = Labels.from_single(np.zeros(3, np.int64))
    tables = {
        "a": Embeddings(np.zeros((3, 2), np.float32), np.arange(3)),
        "b": Embeddings(np.zeros((4, 2), np.float32), np.arange(4)),
    }
    data = type("Data", (), {"labels": labels})()
    assert list(labels_of(data, tables)) == ["a"]
    assert list(labels_of(run.dataset, run.tables)) == ["node"]


def test_a_damaged_history_is_named(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"ep')
    with pytest.raises(DataError, match=r"metrics\.jsonl: a line is no JSON"):
        read_history(tmp_path)
