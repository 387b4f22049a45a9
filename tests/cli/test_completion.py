"""The scripts of the shells know the commands, flags and values of the grammar."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from graph_emb.cli.completion import SCRIPTS, grammar
from graph_emb.cli.parser import build_parser
from graph_emb.config import MODELS
from tests.cli.conftest import Outcome


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of bash."""
    file = tmp_path_factory.mktemp("completion") / "script.bash"
    file.write_text(SCRIPTS["bash"](grammar()), encoding="utf-8")
    return file


def completed(script: Path, *words: str) -> set[str]:
    """The words that bash offers for the last one."""
    line = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=(graph-emb {shlex.join(words)}); COMP_CWORD={len(words)}; "
        '_graph_emb; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-uc", line], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_commands_flags_and_values(script: Path) -> None:
    assert completed(script, "tr") == {"train"}
    assert completed(script, "-q", "eval", "li") == {"link"}
    assert completed(script, "train", "") == set(MODELS)
    assert completed(script, "train", "deepwalk", "--checkp") == {"--checkpoint-every"}
    assert completed(script, "export", "runs/a", "--format", "") == {"npy", "parquet", "word2vec", "pt"}
    assert completed(script, "completion", "") == {"bash", "zsh", "fish"}
    assert "ogbl-ddi" in completed(script, "train", "deepwalk", "--dataset", "ogbl")


def test_what_is_a_file_is_left_to_bash(script: Path) -> None:
    assert completed(script, "train", "deepwalk", "--out", "") == set()
    assert completed(script, "train", "deepwalk", "--out", "--") == set()
    assert "complete -o default -F _graph_emb graph-emb" in script.read_text(encoding="utf-8")


def test_bash_offers_every_flag_of_every_command(script: Path) -> None:
    leaves = {name: leaf for name, leaf in build_parser()[1].items() if name}
    assert len(leaves) > 15
    for name, leaf in leaves.items():
        assert completed(script, *name.split(), "-") == set(leaf.flags())


CASES = {
    ("tr",): {"train"},
    ("-q", "eval", "li"): {"link"},
    ("train", "deepw"): {"deepwalk"},
    ("train", "deepwalk", "--checkp"): {"--checkpoint-every"},
    ("export", "runs/a", "--format", ""): {"npy", "parquet", "word2vec", "pt"},
    ("train", "deepwalk", "--dataset", "ogbl-d"): {"ogbl-ddi"},
    ("completion", ""): {"bash", "zsh", "fish"},
    ("train", "deepwalk", "--out", "some"): {"somefile"},
}
"""What each shell offers for the last word, in a folder with one file."""


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish: apt-get install fish")
def test_fish_completes_commands_flags_and_values(tmp_path: Path) -> None:
    (tmp_path / "somefile").touch()
    file = tmp_path / "script.fish"
    file.write_text(SCRIPTS["fish"](grammar()), encoding="utf-8")
    asked = [
        f"echo =; complete -C {shlex.quote(shlex.join(['graph-emb', *words[:-1]]) + ' ' + words[-1])}"
        for words in CASES
    ]
    line = ["fish", "--no-config", "-c", f"source {shlex.quote(str(file))}; {'; '.join(asked)}"]
    variables = {**os.environ, "HOME": str(tmp_path / "home")}
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path, env=variables)
    answers = done.stdout.split("=\n")[1:]
    assert done.stderr == ""
    assert [{told.split("\t")[0] for told in answer.splitlines()} for answer in answers] == list(CASES.values())


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt-get install zsh")
@pytest.mark.parametrize("way", ["autoload -Uz _graph-emb", "source ./_graph-emb"])
def test_zsh_completes_commands_flags_and_values(tmp_path: Path, way: str) -> None:
    """The file in $fpath defined its function and offered nothing: the first tab of a session did nothing."""
    (tmp_path / "_graph-emb").write_text(SCRIPTS["zsh"](grammar()), encoding="utf-8")
    lines = [
        "compdef() { registered=$1 }",
        "compadd() { shift; local found=(${(M)@:#$PREFIX*}); print -l -- $found; (( $#found )) }",
        "_files() { print -l -- ${(M)${:-somefile}:#$PREFIX*} }",
        f"registered=_graph-emb; fpath=(. $fpath); {way}",
    ]
    for words in CASES:
        lines += [
            f"words=(graph-emb {shlex.join(words)}); CURRENT=$#words; PREFIX=${{words[-1]}}; print =; $registered"
        ]
    done = subprocess.run(["zsh", "-fc", "\n".join(lines)], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    assert [set(answer.split()) for answer in done.stdout.split("=\n")[1:]] == list(CASES.values())


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_command_prints_the_script(cli: Callable[..., Outcome], shell: str) -> None:
    done = cli("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert done.out == SCRIPTS[shell](grammar())
    for word in ("hold-out", "node-class", "verify", "metapath2vec", "word2vec"):
        assert word in done.out
