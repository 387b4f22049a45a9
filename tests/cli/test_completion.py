"""The scripts of the shells know the commands, flags and values of the grammar."""

from __future__ import annotations

import shlex
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


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_command_prints_the_script(cli: Callable[..., Outcome], shell: str) -> None:
    done = cli("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert done.out == SCRIPTS[shell](grammar())
    for word in ("hold-out", "node-class", "verify", "metapath2vec", "word2vec"):
        assert word in done.out
