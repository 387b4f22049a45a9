"""A process that starts warm says and answers what a new interpreter does, to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import warm

PROGRAMS = {
    "ends": "print('out', end='')",
    "status": "import sys; print('out'); sys.exit(3)",
    "large status": "import sys; sys.exit(2**40 + 7)",
    "no status": "import sys; sys.exit(None)",
    "text": "import sys; sys.exit('why')",
    "list": "import sys; sys.exit([1])",
    "true": "import sys; sys.exit(True)",
    "error": "print('out'); raise ValueError('why')",
    "hook": "import sys; sys.excepthook = lambda *_: sys.exit(5); raise ValueError",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "at once": "import os; print('lost', end=''); os._exit(4)",
    "exit functions": "import atexit; [atexit.register(print, text) for text in ('last', 'first')]; print('before')",
    "exit function fails": "import atexit; atexit.register(exec, '1 / 0'); print('out')",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('later'))).start()",
    "daemon": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); print('out')",
    "finalizer": "import weakref; one = type('One', (), {})(); weakref.finalize(one, print, 'gone'); print('out')",
    "object": """
class Says:
    def __init__(self, text): self.text = text
    def __del__(self, print=print): print(self.text)
held, ring = Says('held'), [Says('ring')]
ring.append(ring)
del ring
""",
    "module": """
import sys, types
class Says:
    def __del__(self, print=print): print('module gone')
sys.modules['own'] = own = types.ModuleType('own')
own.held = Says()
""",
    "standard modules": "import json, os, re; print(json.dumps([os.sep, re.escape('.')]))",
    "forks": "import os, sys; pid = os.fork(); pid or sys.exit(6); print(os.waitstatus_to_exitcode(os.wait()[1]))",
    "closed output": "import sys; print('lost'); sys.stdout.close()",
    "no output": "import os, sys; print('lost'); os.close(1)",
}
EVERY_WAY = ("status", "error", "object")
PRINTED_BY_RUNPY = ("error", "interrupt", "hook")
"""Their tracebacks have lines of the way to the program: the last line is compared."""


def run(start: Callable[..., Any], words: list[str], folder: Path) -> tuple[int, str, list[str]]:
    process = start([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors.splitlines()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_as_in_a_new_interpreter(name: str, tmp_path: Path) -> None:
    Path(tmp_path, "program.py").write_text(PROGRAMS[name])
    ways = [["-c", PROGRAMS[name]], ["program.py"], ["-m", "program"]]
    for words in ways if name in EVERY_WAY else ways[:1]:
        cold, started_warm = (run(start, words, tmp_path) for start in (warm.Cold, warm.Popen))
        if name in PRINTED_BY_RUNPY:
            cold, started_warm = ((code, out, errors[-1:]) for code, out, errors in (cold, started_warm))
        assert started_warm == cold


@pytest.mark.parametrize("code", ["print('x' * 100)", "print('x' * 100_000)", "import sys; print('x'); sys.exit(3)"])
def test_an_output_that_nobody_reads_is_the_same_status(code: str) -> None:
    codes = []
    for start in (warm.Cold, warm.Popen):
        read, write = os.pipe()
        os.close(read)
        process = start([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        process.communicate(timeout=120)
        codes.append(process.returncode)
    assert codes[0] == codes[1] != 0


def test_a_signal_to_a_group_reaches_what_its_first_process_started() -> None:
    other = "import os, sys; print(os.getpgrp(), flush=True); sys.stdin.read()"
    program = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {other!r}]))"
    for start in (warm.Cold, warm.Popen):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with start([sys.executable, "-c", program], process_group=0, **streams) as process:
            assert int(process.stdout.readline()) == process.pid
            os.killpg(process.pid, signal.SIGTERM)
            assert process.stdout.read() == ""  # ends when no process has it open


@pytest.mark.dist
@pytest.mark.cold
def test_processes_that_wait_end_before_the_warm_one() -> None:
    """A session without workers ended the warm process first, which kills its forks: the exit told of codes 255."""
    one = "tests/test_way_of_an_id.py::test_in_trainer_and_server_of_kvstore_mode"
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", one]
    environment = {name: value for name, value in os.environ.items() if name != warm.PLACE}
    ended = warm.Cold(words, cwd=warm.CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = ended.communicate()[0].decode()
    assert (ended.returncode, "1 passed" in said, "waiting processes" in said) == (0, True, False), said
