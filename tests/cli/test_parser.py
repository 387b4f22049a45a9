"""The grammar of the command line: what it understands, and the nearest known word for what it does not."""

from __future__ import annotations

import pytest

from graph_emb.cli.parser import MODELS_HELP, parse
from graph_emb.config import MODELS, parse_override
from graph_emb.core.errors import ConfigError


def test_overrides_may_stand_anywhere_after_the_model() -> None:
    args = parse(["train", "deepwalk", "train.lr=1", "--dataset", "cora", "model.dim=8", "-q"])
    assert (args.command, args.model, args.dataset, args.quiet) == ("train", "deepwalk", "cora", True)
    assert args.overrides == ["train.lr=1", "model.dim=8"]


def test_an_override_is_not_taken_for_the_model() -> None:
    args = parse(["train", "--config", "c.yaml", "lr=1", "seed=3"])
    assert args.model is None
    assert args.overrides == ["lr=1", "seed=3"]


@pytest.mark.parametrize("words", [["--debug", "info"], ["info", "--debug"]])
def test_debug_may_stand_before_and_after_the_command(words: list[str]) -> None:
    assert parse(words).debug


@pytest.mark.parametrize("flag", ["-q", "--debug"])
def test_a_flag_before_the_command_changes_no_command(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``-q eval runs/a`` took the folder for a task, and ``-q train MODEL --help`` left the model's settings out."""
    found = parse([flag, "eval", "runs/a"])
    assert (found.command, found.run) == ("eval run", "runs/a")
    with pytest.raises(SystemExit):
        parse([flag, "train", "deepwalk", "--help"])
    assert "model.walk_length=40" in capsys.readouterr().out


def test_a_negative_value_is_a_value() -> None:
    assert parse(["train", "deepwalk", "--seed", "-1"]).seed == "-1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian", r"unknown command 'trian'; known: .*did you mean 'train'"),
        ("eval lnk", r"unknown task 'lnk'; known: link, node-class, run \(did you mean 'link'\?\)"),
        ("eval", r"arguments are required: TASK"),
        ("train deepwalk --dataste x", r"unknown flag '--dataste' \(did you mean --dataset\?\)"),
        ("eval link --dataste=x", r"unknown flag '--dataste' \(did you mean --dataset\?\)"),
        ("train --data x", r"unknown flag '--data'"),  # no abbreviations: they would break when a flag is added
        ("info -x", r"unknown flag '-x' \(see graph-emb info --help\)"),
        ("train deepwalk --dataset", r"--dataset: expected one argument"),
        ("eval link", r"required: --embeddings;"),
        ("eval node-class --embeddings e --labels l --dataset d", "not allowed with argument"),
        ("export x --out y --format npz", r"unknown --format 'npz'; known: .*did you mean 'npy'"),
        ("info a b", r"unexpected argument 'b'; see graph-emb info --help"),
        ("info a b=1", r"unexpected argument 'b=1'; key=value belongs to graph-emb train"),
        ("train deepwalk cora", r"unexpected argument 'cora'"),
    ],
)
def test_a_wrong_line_is_refused_with_the_nearest_word(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(line.split())
    assert "\n" not in str(caught.value)


def test_the_help_names_every_model() -> None:
    assert set(MODELS_HELP.replace(" or ", ", ").split(", ")) == set(MODELS)


def test_the_help_of_a_model_lists_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for words, has in ((["train", "transe", "--help"], True), (["train", "--help"], False)):
        with pytest.raises(SystemExit):
            parse(words)
        text = capsys.readouterr().out
        assert ("  model.margin=" in text) is has
        assert "model.walk_length=" not in text


def test_the_nearest_key_is_one_of_the_chosen_model() -> None:
    with pytest.raises(ConfigError, match=r"known: [a-z, ]*train$"):
        parse_override("windw=3", "transe")
    with pytest.raises(ConfigError, match=r"did you mean 'model\.window'"):
        parse_override("windw=3", "deepwalk")
    with pytest.raises(ConfigError, match=r"did you mean 'model\.window'"):
        parse_override("windw=3")
