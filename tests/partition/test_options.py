from __future__ import annotations

import dataclasses
import inspect
import pydoc
from pathlib import Path

import pytest

import partition
from graph_emb.core.errors import ConfigError
from partition.options import BuildOptions
from tests.partition.made_graphs import homogeneous, random_parts


def test_the_parts_are_those_of_the_assignment() -> None:
    assignment = random_parts(homogeneous(), 3)
    assert BuildOptions(out="out", assignment=assignment).total_parts == 3
    assert BuildOptions(out="out", num_parts=2).total_parts == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"report": True}, "report=True needs the whole graph in memory"),
        ({"num_hops": 2}, "num_hops=2 needs"),
        ({"allow_empty": True}, "allow_empty=True needs"),
        ({"edge_owner": "source"}, "edge_owner='source' needs"),
        ({"num_threads": 2}, "memory= works with one thread"),
    ],
)
def test_a_build_in_bounded_memory_refuses_what_it_cannot_do(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BuildOptions.of(out="out", num_parts=2, memory="1GB", **options)


def test_an_unknown_option_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown option of a build 'num_thread'.*did you mean 'num_threads'"):
        partition.build(homogeneous(), 2, out=tmp_path / "out", num_thread=1)
    assert list(tmp_path.iterdir()) == []


def test_help_of_build_names_every_option_with_its_default() -> None:
    """``**options`` hid twenty of them."""
    text = pydoc.plain(pydoc.render_doc(partition.build))
    shown = inspect.signature(partition.build).parameters
    for option in dataclasses.fields(BuildOptions):
        assert option.name in text.partition("Partition a graph")[0]
        default = inspect.Parameter.empty if option.default is dataclasses.MISSING else option.default
        assert shown[option.name].default == default
    again = inspect.signature(partition.repartition).parameters
    assert set(shown) - set(again) == {"graph", "assignment"}
    assert "options" not in {*shown, *again}
