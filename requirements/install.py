"""Install packages as ``pip install`` does, by uv where it may: it takes a quarter of the time.

    .venv/bin/python requirements/install.py --constraint requirements/tested.txt --editable '.[test]'

uv does not read pip's configuration (files and PIP_ variables), so what that says of indexes, certificates and
constraints is handed over. Where it says more, where there is no uv, or where uv fails, pip does the whole.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PINS = Path(__file__).parent / "tested.txt"
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
"""pip's settings that are variables of uv, and what stands between several values. They may hold passwords, which a
command line would show to others."""
WITHOUT_EFFECT = {
    "default-timeout", "timeout", "retries", "quiet", "verbose", "no-color", "no-input", "progress-bar",
    "disable-pip-version-check", "root-user-action", "no-warn-script-location", "cache-dir", "no-cache-dir",
    "break-system-packages", "require-virtualenv",
}  # fmt: skip
"""Settings that do not change what is installed."""
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def configured(listed: str) -> dict[str, str]:
    """pip's settings for installing, as ``pip config list`` prints them: variables go before files."""
    places = ("global", "install", ":env:")
    found: dict[str, dict[str, str]] = {place: {} for place in places}
    for line in listed.splitlines():
        name, equals, value = line.partition("=")
        place, _, key = name.rpartition(".")
        if equals and place in found:
            found[place][key.replace("_", "-")] = value.strip("'\"")
    return {key: value for place in places for key, value in found[place].items()}


def told(settings: Mapping[str, str]) -> tuple[list[str], dict[str, str]] | None:
    """Words and variables that tell uv what pip is told; None where it cannot be told."""
    words, variables = [], {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # the best version of all indexes, as pip
    for key, value in settings.items():
        several = value.replace("\\n", " ").split()
        if key == "constraint":  # a variable would give way to the words that a caller adds
            words += [word for one in several for word in ("--constraint", one)]
        elif key in VARIABLES:
            name, between = VARIABLES[key]
            variables[name] = between.join(several)
        elif key not in WITHOUT_EFFECT:
            return None
    return words, variables


def by_uv(words: Sequence[str]) -> bool:
    """Whether uv has installed what the words name."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False)
    found = told(configured(listed.stdout))
    pin = next(line for line in PINS.read_text().splitlines() if line.startswith("uv=="))
    if found is None or subprocess.run([*PIP, "install", "--quiet", pin], capture_output=True).returncode:
        return False
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    return not subprocess.run(
        [*command, *found[0], *words], env={**os.environ, **found[1]}, capture_output=True
    ).returncode


def main(words: Sequence[str]) -> int:
    """The exit status of the installation."""
    if by_uv(words):
        return 0
    return subprocess.run([*PIP, "install", "--quiet", "--no-compile", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
