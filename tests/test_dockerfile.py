"""The Dockerfile, of which no image is built here: its steps run in a folder that stands for the image."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template

import networkx
import pytest

from benchmarks.wheels import SOURCES, settings
from tests.conftest import CHECKOUT

DOCKERFILE = CHECKOUT / ".ci" / "Dockerfile"
PINS = "requirements/tested.txt"
Step = tuple[str, str]


def steps() -> list[Step]:
    """Instruction and the rest of its line."""
    lines = re.sub(r"^#.*\n|\\\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def copied() -> list[tuple[list[str], str]]:
    """Sources and target of each COPY."""
    words = [
        [word for word in shlex.split(rest) if not word.startswith("--")] for kind, rest in steps() if kind == "COPY"
    ]
    return [(sources, target) for *sources, target in words]


def test_the_python_is_the_one_that_the_makefile_prefers() -> None:
    (image,) = (rest for kind, rest in steps() if kind == "FROM")
    found = re.fullmatch(r"python:(3\.\d+)-slim", image)
    assert found is not None
    makefile = (CHECKOUT / "Makefile").read_text()
    assert f"PYTHON ?= $(shell command -v python{found[1]} " in makefile
    assert f'"Programming Language :: Python :: {found[1]}"' in (CHECKOUT / "setup.py").read_text()


def test_it_copies_what_a_wheel_is_built_of_and_the_ignored_rest_is_not_sent() -> None:
    names = [name for sources, _ in copied() for name in sources]
    assert sorted(names) == sorted([*SOURCES, PINS])
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    assert rules[1] == "*"
    assert sorted(sent) == sorted(names)
    assert any(fnmatch.fnmatch("graph_emb/__pycache__", rule) for rule in rules[2:] if not rule.startswith("!"))


def test_every_install_takes_the_pins_of_the_makefile() -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    assert f"--constraint {PINS}" in makefile
    installs = [rest for kind, rest in steps() if kind == "RUN" and "pip install" in rest]
    assert len(installs) == 2
    assert all(f"--constraint {PINS}" in line for line in installs)


def test_its_user_is_not_root_and_the_shell_of_the_guide_runs_it() -> None:
    kinds = [kind for kind, _ in steps()]
    assert [rest for kind, rest in steps() if kind == "USER"] == ["graph"]
    assert kinds.index("USER") < min(place for place, (_, rest) in enumerate(steps()) if "pip" in rest)
    guide = (CHECKOUT / "docs" / "install.md").read_text()
    arguments = re.findall(r"--build-arg (\w+)=", guide)
    assert sorted(arguments) == sorted(rest.partition("=")[0] for kind, rest in steps() if kind == "ARG")
    assert f"--file {DOCKERFILE.relative_to(CHECKOUT)}" in guide
    assert "--shm-size" in guide


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image's Python")
def test_the_steps_install_a_command_that_works(tmp_path: Path) -> None:
    """Paths of the image lie in a folder; packages are the tests', so pip has only to find that they fit the pins."""

    def here(text: str) -> str:
        return text.replace("/home/graph", str(tmp_path / "home")).replace("/data", str(tmp_path / "data"))

    for name in ("home/source", "data"):
        (tmp_path / name).mkdir(parents=True)
    variables = {
        **settings(tmp_path / "user"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_COMPILE": "1",
    }
    variables["PATH"] = os.pathsep.join([str(Path(sys.base_prefix, "bin")), variables["PATH"]])
    folder, last = tmp_path, {}
    for kind, rest in steps():
        if kind == "WORKDIR":
            folder = Path(here(rest))
        elif kind in ("ARG", "ENV"):
            name, _, value = rest.partition("=")
            variables[name] = Template(here(value.strip('"'))).substitute(variables)
        elif kind == "COPY":
            *sources, target = [word for word in shlex.split(rest) if not word.startswith("--")]
            for source in sources:
                place = folder / target / ("" if (CHECKOUT / source).is_dir() else Path(source).name)
                place.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (CHECKOUT / source).is_dir() else shutil.copy2
                copy(CHECKOUT / source, place)
        elif kind == "RUN" and not rest.startswith(("useradd", "graph-emb demo")):  # root's, and test_wheel.py's
            done = subprocess.run(here(rest), shell=True, cwd=folder, env=variables, capture_output=True, text=True)
            assert done.returncode == 0, (rest, done.stdout, done.stderr)
            if rest.startswith("python -m venv"):
                (own,) = (tmp_path / "home" / "env").glob("lib/python*/site-packages")
                for old in own.glob("setuptools*"):  # pip fetches torch's
                    shutil.rmtree(old)
                (own / "packages.pth").write_text(f"{Path(networkx.__file__).parents[1]}\n")
        else:
            last[kind] = rest
    program, *words = [*json.loads(last["ENTRYPOINT"]), *json.loads(last["CMD"])]
    told = subprocess.run([program, *words], cwd=folder, env=variables, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("usage: graph-emb")
    assert Path(shutil.which(program, path=variables["PATH"]) or "").is_relative_to(tmp_path)
