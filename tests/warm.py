"""Starts of Python processes forked from one that has torch, DGL and graph_emb imported: a fifth of the processor time.

A process so started has its own pid, session, pipes, environment, folder and exit status, runs the same program from
its first line and ends as the interpreter ends; only the imports are done before. Programs that it starts are warm too.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import arbitrary_address
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
PLACE = "GRAPH_EMB_TESTS_WARM"
"""The variable that says where the warm process listens."""
FORK_SERVER = """
import os
from multiprocessing import forkserver
listener, alive = os.dup(0), os.dup(1)
os.dup2(2, 1)
forkserver.main(listener, alive, [])
"""
AT_LOADING = (
    "DGLBACKEND",
    "DGL_LIBRARY_PATH",
    "GOMP_",
    "KMP_",
    "LC_",
    "LANG",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NUMBA_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
)
"""Beginnings of the variables that interpreters and libraries read once; a process that changes one starts cold."""
AT_ANY_TIME = ("GOMP_SPINCOUNT", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONPATH", "PYTHONUNBUFFERED")
"""Those among them that a warm process can take over afterwards."""
CLONE_NEWNS = 0x00020000  # linux/sched.h
EXIT = ctypes.PyDLL(None).exit

Cold: Any = subprocess.Popen


class Popen(Cold):
    """``subprocess.Popen`` whose Python programs start warm; everything else starts as ever."""

    _warm: socket.socket | None = None

    def _execute_child(self, *args: Any) -> None:
        given = inspect.signature(super()._execute_child).bind(*args).arguments
        request = _request(given)
        if request is None:
            super()._execute_child(*args)
            return
        here = socket.socket(socket.AF_UNIX)
        try:
            here.connect(os.environ[PLACE])
            streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
            opened = [number if stream == -1 else stream for number, stream in enumerate(streams)]
            _send(here, request, opened)
            self.pid = int.from_bytes(_received(here, 4), "little")
            self._child_created = True
        except BaseException:
            here.close()
            raise
        finally:
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[name] for name in names))
        self._warm = here

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self._warm is None:
            return super()._internal_poll(_deadstate)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if self.returncode is None and pid == self.pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._warm is None:
            return super()._try_wait(wait_flags)
        if wait_flags & os.WNOHANG and not select.select([self._warm], [], [], 0)[0]:
            return 0, 0
        status = int.from_bytes(_received(self._warm, 4), "little")
        self._warm.close()
        return self.pid, status


def _request(given: dict[str, Any]) -> dict[str, Any] | None:
    """What a warm process needs to know; None: only a new interpreter can do this."""
    command = given["args"]
    if isinstance(command, str | bytes | os.PathLike) or given["shell"] or given["executable"] or given["pass_fds"]:
        return None
    words = [os.fsdecode(word) for word in command]
    network = mount = None
    if words[1:3] == ["netns", "exec"]:
        network, words = words[3], words[4:]
    if words[:4] == ["unshare", "--mount", "sh", "-c"]:
        mount, words = words[4], words[6:]
    environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (given["env"] or os.environ).items()}
    environment[PLACE] = os.environ[PLACE]
    at_once = bool(environment.get("PYTHONUNBUFFERED"))
    if words[1:2] == ["-u"]:
        at_once = bool(words.pop(1))
    if words[:1] != [sys.executable] or len(words) < 2 or (words[1][0] == "-" and words[1] not in ("-c", "-m")):
        return None
    if _read_at_loading(environment) != _read_at_loading(os.environ) or _has_another_package(environment):
        return None
    return {
        "words": words[1:],
        "environment": environment,
        "at_once": at_once,
        "folder": os.path.abspath(os.fspath(given["cwd"] or ".")),
        "session": given["start_new_session"],
        "group": _group(given),
        "asked_by": os.getpid(),
        "network": network,
        "mount": mount,
        "dies_with_us": given["preexec_fn"] is not None,
    }


def _group(given: dict[str, Any]) -> int:
    """The process group of a start, 0: one of its own; signals to a job reach its processes."""
    asked = given.get("process_group", -1)
    return os.getpgrp() if asked < 0 and not given["start_new_session"] else max(asked, 0)


def _read_at_loading(environment: Any) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(AT_LOADING) and k not in AT_ANY_TIME}


def _has_another_package(environment: Any) -> bool:
    folders = map(Path, environment.get("PYTHONPATH", "").split(os.pathsep))
    return any((folder / "graph_emb").is_dir() and folder.resolve() != CHECKOUT for folder in folders)


def _send(here: socket.socket, request: dict[str, Any], opened: Sequence[int]) -> None:
    text = json.dumps(request).encode("utf-8", "surrogateescape")
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", opened))
    here.sendmsg([len(text).to_bytes(4, "little")], [rights])
    here.sendall(text)


def _received(here: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        more = here.recv(size - len(got))
        if not more:
            raise ChildProcessError("the warm process is gone")
        got += more
    return got


def started_by(pid: int) -> dict[int, tuple[list[str], dict[str, str]]]:
    """The warm processes that a process has started, by their pids: command line and environment of each."""
    place = Path(os.environ[PLACE])
    files = place.parent.glob(f"{place.name}-{pid}-*")
    return {int(file.name.rpartition("-")[2]): json.loads(file.read_text("utf-8")) for file in files}


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A process that gets warm when it is first asked for another one; yields where it listens.

    It ends, with what it started, when the context or this process does.
    """
    with tempfile.TemporaryDirectory(prefix="graph-emb-tests-") as folder:
        place = str(Path(folder, "warm"))
        environment = {**os.environ, PLACE: place}
        words = [sys.executable, "-m", "tests.warm"]
        process = Cold(words, cwd=CHECKOUT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout.readline() == b"listens\n"
            yield place
        finally:
            process.stdin.close()
            process.wait(60)
            process.stdout.close()


class ForkServer:
    """Instead of multiprocessing's start of its fork server, which imports all anew: that server is a warm process."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        self.process: Popen | None = None

    def ensure_running(self) -> None:
        """As ``multiprocessing.forkserver.ForkServer.ensure_running``."""
        with self.theirs._lock:
            resource_tracker.ensure_running()
            if self.process is not None and self.process.poll() is None:
                return
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address := arbitrary_address("AF_UNIX"))
                listener.listen()
                alive, held = os.pipe()  # all clients hold the end for writing; without one the server ends
                self.process = Popen([sys.executable, "-c", FORK_SERVER], stdin=listener, stdout=alive)
                os.close(alive)
            self.theirs._forkserver_address, self.theirs._forkserver_alive_fd = address, held


def _serve() -> Callable[[], None]:
    """Fork a process for every request; returns in that process alone, with what it has to run."""
    subprocess.Popen = Popen  # type: ignore[misc]  # before the imports: torchrun keeps the name
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, tuple[socket.socket | None, bool]] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ[PLACE])
        listener.listen(64)
        os.write(1, b"listens\n")
        if 0 in select.select([0, listener], [], [])[0]:
            os._exit(0)
        _keep_imports()
        while True:
            asked = [here for here, _ in children.values() if here is not None]
            ready = select.select([0, awake, listener, *asked], [], [])[0]
            if 0 in ready:
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                os._exit(0)
            if awake in ready:
                os.read(awake, 4096)
                _tell_ends(children)
            for pid, (here, dies_with_us) in list(children.items()):
                if here is not None and here in ready:  # whoever asked is gone: nothing is ever said here
                    here.close()
                    children[pid] = None, False
                    if dies_with_us:
                        os.kill(pid, signal.SIGKILL)
            if listener not in ready:
                continue
            here = listener.accept()[0]
            head, opened, _, _ = socket.recv_fds(here, 4, 3)
            request = json.loads(_received(here, int.from_bytes(head, "little")).decode("utf-8", "surrogateescape"))
            pid = os.fork()
            if pid == 0:
                break
            for descriptor in opened:
                os.close(descriptor)
            children[pid] = here, request["dies_with_us"]
            about = json.dumps([[sys.executable, *request["words"]], request["environment"]])
            Path(f"{os.environ[PLACE]}-{request['asked_by']}-{pid}").write_text(about, "utf-8")
    signal.set_wakeup_fd(-1)
    for descriptor in (awake, wake):
        os.close(descriptor)
    for other, _ in children.values():
        if other is not None:
            other.close()
    program = _becomes(request, opened)
    with here:
        here.sendall(os.getpid().to_bytes(4, "little"))
    return program


def _keep_imports() -> None:
    """Import what most processes need. None takes it apart at its end: that would copy most of the memory they share.

    What a program makes itself ends as ever, in Python and in C++.
    """
    kept: dict[str, types.ModuleType] = {}
    first = dict(sys.modules)

    def forget() -> None:
        for name in kept:
            if name not in first:
                sys.modules.pop(name, None)
        gc.callbacks.append(forget_first)

    def forget_first(phase: str, _: Any) -> None:
        if phase == "stop" and sys.is_finalizing():  # the collection before modules are taken apart
            for name in first:
                if name not in ("__main__", "builtins", "sys"):
                    sys.modules.pop(name, None)

    atexit.register(forget)  # before the others, so that it runs after them
    importlib.import_module("tests.preloaded")
    kept.update(sys.modules)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # for ever
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def _tell_ends(children: dict[int, tuple[socket.socket | None, bool]]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        here, _ = children.pop(pid)
        if here is not None:
            with here, contextlib.suppress(OSError):
                here.sendall(status.to_bytes(4, "little"))


def _becomes(request: dict[str, Any], opened: Sequence[int]) -> Callable[[], None]:
    """Make this fork the process that was asked for; returns its program."""
    import random

    import numba
    import numpy as np
    import torch

    from graph_emb.core import threads

    spaces = {"mnt": f"/proc/{request['asked_by']}/ns/mnt", "net": f"/proc/{request['asked_by']}/ns/net"}
    if request["network"] is not None:
        spaces["net"] = f"/var/run/netns/{request['network']}"
    for kind, place in spaces.items():
        if os.stat(place).st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino:
            with open(place, "rb") as file:
                _call("setns", file.fileno(), 0)
    if request["mount"] is not None:
        _call("unshare", CLONE_NEWNS)
        Cold(["sh", "-c", f"mount --make-rprivate / && {request['mount']}", "sh", "true"]).wait()
    if request["session"]:
        os.setsid()
    with contextlib.suppress(PermissionError):  # the group of another session, or one that has ended, takes nobody
        os.setpgid(0, request["group"])
    for number, descriptor in enumerate(opened):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = sys.__stdin__ = _stream(0, sys.__stdin__, False)
    sys.stdout = sys.__stdout__ = _stream(1, sys.__stdout__, request["at_once"])
    sys.stderr = sys.__stderr__ = _stream(2, sys.__stderr__, request["at_once"])
    tempfile.tempdir = None  # $TMPDIR may be another one
    random.seed()
    np.random.seed()
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    numba.config.reload_config()
    threads.MOST_THREADS = numba.config.NUMBA_NUM_THREADS
    libc = ctypes.CDLL(None)
    # What the libraries of the imports would do comes after this, as they were loaded before it (see atexit(3)).
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    program, end = _program(request["words"]), _End()
    sys._end = end  # type: ignore[attr-defined]
    return lambda: end.note(program)


class _End:
    """Ends the process where the interpreter comes to its own state, which nobody sees any more.

    To take that apart copies 70 MB that processes share, 100 ms of the processor. ``sys`` is cleared last: after the
    program's threads, exit functions, garbage and modules. What ends by a traceback, a signal or an error of a stream
    is left to the interpreter, and so is its status.
    """

    status: int | None = None

    def note(self, program: Callable[[], None]) -> None:
        """Run the program, and keep the status that it asks for."""
        try:
            program()
            self.status = 0
        except SystemExit as end:
            self.status = 0 if end.code is None else end.code if type(end.code) is int else None
            raise

    def __del__(self, sys: Any = sys, exit: Any = EXIT) -> None:
        if self.status is None:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
        except Exception:
            return
        exit(self.status)


def _call(name: str, *arguments: int) -> None:
    """A function of libc that answers 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _stream(number: int, like: Any, at_once: bool) -> Any:
    raw = open(number, "wb" if number else "rb", 0 if at_once else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, like.encoding, like.errors, line_buffering=number == 2, write_through=at_once)


def _program(words: Sequence[str]) -> Callable[[], None]:
    """What ``python *words`` runs, as ``__main__``."""
    import runpy

    kind, own = (words[0], words[1:]) if words[0] in ("-c", "-m") else ("script", words)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = os.path.dirname(os.path.realpath(own[0])) if kind == "script" else ("" if kind == "-c" else os.getcwd())
    sys.path[:] = [first, *(folder for folder in before if folder), *sys.path[1:]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    if kind == "-m":
        sys.argv = ["-m", *own[1:]]
        return lambda: runpy._run_module_as_main(own[0])  # type: ignore[attr-defined]
    if kind == "-c":
        sys.argv = ["-c", *own[1:]]
        code = compile(own[0], "<string>", "exec")
    else:
        sys.argv = [*own]
        main.__file__ = own[0]
        code = compile(Path(own[0]).read_bytes(), own[0], "exec")
    return lambda: exec(code, main.__dict__)


if __name__ == "__main__":
    from tests import warm

    warm._serve()()
