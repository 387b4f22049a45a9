"""``graph-emb completion``: scripts that complete commands, flags and values, made from the grammar."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from graph_emb.cli.parser import TRAINS, build_parser
from graph_emb.config import MODELS
from graph_emb.core.terminal import Parser
from graph_emb.graph.datasets import available


@dataclass(frozen=True)
class Flag:
    """A flag of a command: its spellings, its help, whether a value follows, and words that it may be.

    Attributes:
        closed: Whether the value is one of ``choices``; otherwise a file may follow, too.
    """

    names: tuple[str, ...]
    text: str
    takes_value: bool
    choices: tuple[str, ...]
    closed: bool


@dataclass(frozen=True)
class Spot:
    """What may follow a command: words with their help, subcommands among them, and flags."""

    words: Mapping[str, str]
    flags: tuple[Flag, ...]


def grammar() -> dict[str, Spot]:
    """By command, such as ``eval link``; "" is the program itself and ``eval`` what has subcommands only."""
    top, leaves = build_parser()
    found: dict[str, Spot] = {}
    for name in {"", *(path for leaf in leaves if leaf for path in _prefixes(leaf))}:
        parser = _parser_at(top, name)
        words: dict[str, str] = {}
        flags = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                words |= {choice.dest: choice.help or "" for choice in action._choices_actions}
            elif not action.option_strings:
                words |= dict.fromkeys(map(str, action.choices or ()), "")
            elif action.help != argparse.SUPPRESS:
                text = (action.help or "").partition(";")[0] % {"default": action.default}
                known = available() if "--dataset" in action.option_strings else action.choices or ()
                takes, choices = action.nargs != 0, tuple(map(str, known))
                flags.append(Flag(tuple(action.option_strings), text, takes, choices, bool(action.choices)))
        if name in TRAINS:
            words |= dict.fromkeys(MODELS, "model")
        found[name] = Spot(words, tuple(flags))
    return dict(sorted(found.items()))


def _prefixes(name: str) -> list[str]:
    words = name.split()
    return [" ".join(words[:end]) for end in range(1, len(words) + 1)]


def _parser_at(top: Parser, name: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = top
    for word in name.split():
        group = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = group.choices[word]
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the script of a shell."""
    print(SCRIPTS[args.shell](grammar()), end="")
    return 0


def _cases(spots: Mapping[str, Spot], indent: str) -> tuple[str, str, str]:
    """Branches of ``case`` in the syntax that bash and zsh share: the command, values of a flag, words and flags."""
    steps = [f'"{name.rpartition(" ")[0]}/{name.rpartition(" ")[2]}"' for name in spots if name]
    values, offers = [], []
    for name, spot in spots.items():
        for flag in spot.flags:
            if flag.takes_value:
                at = "|".join(f'"{name}/{spelling}"' for spelling in flag.names)
                values.append(f"{at}) known={shlex.quote(' '.join(flag.choices))}; valued=1 ;;")
        flags = " ".join(spelling for flag in spot.flags for spelling in flag.names)
        offers.append(f'"{name}") words={shlex.quote(" ".join(spot.words))}; flags={shlex.quote(flags)} ;;')
    return "|".join(steps), f"\n{indent}".join(values), f"\n{indent}".join(offers)


def bash(spots: Mapping[str, Spot]) -> str:
    """For ``~/.bashrc``; what no word fits is completed as a file."""
    steps, values, offers = _cases(spots, " " * 8)
    return f"""# eval "$(graph-emb completion bash)" in ~/.bashrc
_graph_emb() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
    local at="" word known="" valued="" words="" flags=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$at/$word" in
            {steps}) at="${{at:+$at }}$word" ;;
        esac
    done
    case "$at/$prev" in
        {values}
    esac
    case "$at" in
        {offers}
    esac
    if [ -n "$valued" ]; then
        words=$known
    elif [[ $cur == -* ]]; then
        words=$flags
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _graph_emb graph-emb
"""


def zsh(spots: Mapping[str, Spot]) -> str:
    """For a file ``_graph-emb`` in a folder of ``$fpath``."""
    steps, values, offers = _cases(spots, " " * 8)
    return f"""#compdef graph-emb
# graph-emb completion zsh > a folder of $fpath/_graph-emb
_graph_emb() {{
    local prev=$words[CURRENT-1] at="" word known="" valued="" offered="" flags=""
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$at/$word" in
            {steps}) at="${{at:+$at }}$word" ;;
        esac
    done
    case "$at/$prev" in
        {values}
    esac
    case "$at" in
        {offers.replace(") words=", ") offered=")}
    esac
    if [[ -n $valued ]]; then
        offered=$known
    elif [[ $PREFIX == -* ]]; then
        offered=$flags
    fi
    compadd -- ${{=offered}} || _files
}}
if [[ $funcstack[1] == _graph-emb ]]; then
    _graph_emb  # the file is the function of its name, and this its first call
else
    compdef _graph_emb graph-emb
fi
"""


def fish(spots: Mapping[str, Spot]) -> str:
    """For ``~/.config/fish/completions/graph-emb.fish``."""
    lines = ["# graph-emb completion fish > ~/.config/fish/completions/graph-emb.fish"]
    lines += [
        "function __graph_emb_at",
        "    set -l at",
        "    for word in (commandline -opc)[2..-1]",
        '        switch "$at/$word"',
        "            case " + " ".join(f'"{n.rpartition(" ")[0]}/{n.rpartition(" ")[2]}"' for n in spots if n),
        '                set at (string trim "$at $word")',
        "        end",
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
    ]
    for name, spot in spots.items():
        here = f"complete -c graph-emb -n {shlex.quote(f'__graph_emb_at {shlex.quote(name)}')}"
        lines += [f"{here} -f -a {word} -d {_fish(text)}" for word, text in spot.words.items()]
        for flag in spot.flags:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in flag.names)
            given = " -x" if flag.closed else " -r -F" if flag.takes_value else ""
            given += f" -a {_fish(' '.join(flag.choices))}" if flag.choices else ""
            lines.append(f"{here} {names}{given} -d {_fish(flag.text)}")
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    """A text in fish's single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
