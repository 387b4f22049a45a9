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
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
}
"""pip's settings whose values, with spaces between them, are those of an option of uv."""
SWITCHES = {"no-index": "--no-index"}
WITHOUT_EFFECT = {
    "cert", "default-timeout", "timeout", "retries", "quiet", "verbose", "no-color", "no-input", "progress-bar",
    "disable-pip-version-check", "root-user-action", "no-warn-script-location", "cache-dir", "no-cache-dir",
    "break-system-packages", "require-virtualenv",
}  # fmt: skip
"""Settings that do not change what is installed; the certificate goes by SSL_CERT_FILE."""
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


def uv_words(settings: Mapping[str, str]) -> list[str] | None:
    """Options that tell uv what pip is told; None where there is no option for it."""
    words = ["--index-strategy", "unsafe-best-match"]  # the best version of all indexes, as pip
    for key, value in settings.items():
        if key in OPTIONS:
            words += [word for one in value.replace("\\n", " ").split() for word in (OPTIONS[key], one)]
        elif key in SWITCHES and value.lower() in ("1", "true", "yes", "on"):
            words.append(SWITCHES[key])
        elif key not in WITHOUT_EFFECT and key not in SWITCHES:
            return None
    return words


def by_uv(words: Sequence[str]) -> bool:
    """Whether uv has installed what the words name."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False)
    settings = configured(listed.stdout)
    options = uv_words(settings)
    pin = next(line for line in PINS.read_text().splitlines() if line.startswith("uv=="))
    if options is None or subprocess.run([*PIP, "install", "--quiet", pin], capture_output=True).returncode:
        return False
    environment = {**os.environ, **({"SSL_CERT_FILE": settings["cert"]} if "cert" in settings else {})}
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    return not subprocess.run([*command, *options, *words], env=environment, capture_output=True).returncode


def main(words: Sequence[str]) -> int:
    """The exit status of the installation."""
    if by_uv(words):
        return 0
    return subprocess.run([*PIP, "install", "--quiet", "--no-compile", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
