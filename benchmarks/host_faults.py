"""SIGKILL, SIGSTOP or a cut cable of any host at a random moment of ``graph-emb train --hosts``: does the job heal?

    sudo python benchmarks/host_faults.py --rounds 30 --json host_faults.json
    sudo python benchmarks/host_faults.py --rounds 30 --restarts 0 --json host_faults_named.json
    sudo python benchmarks/host_faults.py --rounds 8 --modes collective --more parallel.overlap=true

Hosts are network namespaces of this machine, each with a trainer of one thread, in kvstore mode with a server too. A
round trains DeepWalk on ``digits``, a checkpoint an epoch, and at a random moment of the training kills or stops one
process of a host or all of them, or cuts its cable. A host that is dead, frozen or cut comes back after some seconds
(the same command, started anew; the cable, plugged in) or never, but for the first one, which holds the run.

With ``--restarts`` the first host's command must end well, say on a host that lives what was hit, keep every step that
a complete checkpoint had, and leave no process. Rows of collective mode are those of an undisturbed run, bit for bit,
where as many trainers ended it; of the scores (micro-F1 at half of the labels) the mean is at most one standard
deviation, that of five undisturbed seeds, from theirs. Without restarts every host that lives must end within
``parallel.timeout`` and 40 s, and one of them name the host. ``--json`` goes on with the rounds that the file has.
A round during which this driver itself was suspended is not judged, and run again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from soak import Clock, children
from tabulate import tabulate

from graph_emb.transport.guard import new_token

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.netns import IP, Network, network

SEEDS = 5
RUN = [
    "train", "deepwalk", "--dataset", "digits", "--threads", "1", "--dim", "32", "--quiet", "--rule", "sgd", "--hosts",
    "hosts.txt", "--checkpoint-every", "1", "model.num_walks=6", "train.epochs=12", "evaluate.ratios=[0.5]",
    "evaluate.shuffles=10", "output.report=none",
]  # fmt: skip
PROCESS, HOST, CABLE = "process", "host", "cable"
FAULTS = {
    "SIGKILL of a process": (PROCESS, signal.SIGKILL),
    "SIGSTOP of a process": (PROCESS, signal.SIGSTOP),
    "SIGKILL of a host": (HOST, signal.SIGKILL),
    "SIGSTOP of a host": (HOST, signal.SIGSTOP),
    "cut cable": (CABLE, None),
}
BACK = 45.0
"""Seconds at most until a host is back, for some too late; the first one comes within the time of a restart."""
STARTS = 12.0
"""Seconds that a command takes on a busy machine until its launcher listens."""
STATED = 40.0
"""Seconds beside parallel.timeout: silence of a launcher, roll call, grace after SIGTERM."""


@dataclass
class Job:
    """One run: the command on each host, and its checkpoints as they come and go."""

    net: Network
    folder: Path
    mode: str
    seed: int
    words: list[str]
    clock: Clock
    token: str = field(default_factory=new_token)
    launchers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    saved: dict[int, list[int]] = field(default_factory=lambda: collections.defaultdict(list))

    def __post_init__(self) -> None:
        (self.folder / "hosts.txt").write_text("".join(f"{address}\n" for address in self.net.addresses))
        for host in range(len(self.net.hosts)):
            self.launchers.append(self.start(host))

    def start(self, host: int) -> subprocess.Popen[bytes]:
        """The command, on a host; what it says is added to what was said there before."""
        words = [*RUN, "--mode", self.mode, "--seed", str(self.seed), "--out", "run", *self.words]
        environment = {**os.environ, "GRAPH_EMB_TOKEN": self.token, "GRAPH_EMB_SHARED_MEMORY": "0"}
        with (self.folder / f"host-{host}").open("ab") as log:
            command = self.net.on(host, [sys.executable, "-m", "graph_emb", *words])
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=environment)

    def said(self, host: int) -> str:
        return (self.folder / f"host-{host}").read_text(errors="replace")

    def look(self) -> int:
        """Notice checkpoints that were completed since the last look; the newest step."""
        for file in self.folder.glob("run-checkpoints/[0-9]*/manifest.json"):
            with contextlib.suppress(OSError):
                at = file.stat().st_mtime_ns
                times = self.saved[int(file.parent.name)]
                if at not in times:
                    times.append(at)
        return max(self.saved, default=0)

    def trains(self) -> bool:
        """Whether a first line of its training is written."""
        return any(file.stat().st_size for file in self.folder.glob(".run.partial-*/metrics.jsonl"))

    def processes(self, host: int) -> dict[str, psutil.Process]:
        """Of a host by role, its launcher among them."""
        return children(self.launchers[host].pid)

    def ends(self, hosts: list[int], seconds: float) -> bool:
        """Whether the commands of these hosts end in time."""

        def ended() -> bool:
            self.look()
            return all(self.launchers[host].poll() is not None for host in hosts)

        return self.clock.until(ended, seconds)

    def score(self) -> float:
        """Micro-F1 of the run at half of the labels, in percent."""
        metrics = json.loads((self.folder / "run" / "metrics.json").read_text())
        return 100 * float(metrics["evaluation"]["node_classification"]["ratios"][0]["micro_mean"])

    def close(self) -> list[int]:
        """Leave no process; the host of each that was there."""
        found, hosts = [], []
        for host, name in enumerate(self.net.hosts):
            for pid in _pids(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(pid))
                    hosts.append(host)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
        psutil.wait_procs(found, timeout=30)
        return hosts


def _pids(namespace: str) -> list[int]:
    done = subprocess.run([str(IP), "netns", "pids", namespace], check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def plug(net: Network, host: int) -> None:
    """Plug a cable in again."""
    words = ["-n", net.switch, "link", "set", f"port{host}", "up"]
    subprocess.run([str(IP), *words], check=True, capture_output=True)


def undisturbed(args: argparse.Namespace, mode: str, seed: int) -> dict[str, Any]:
    """Score, rows and seconds of training of a run that nothing happens to."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as place, network(args.hosts) as net:
        job = Job(net, Path(place), mode, seed, args.more, clock)
        try:
            clock.until(lambda: job.trains() or job.launchers[0].poll() is not None, 300)
            begun = time.monotonic() - clock.suspended
            if not job.ends(list(range(args.hosts)), 600) or any(one.returncode for one in job.launchers):
                raise SystemExit(f"an undisturbed run of {mode} mode failed: {job.said(0)[-2000:]}")
            seconds = time.monotonic() - clock.suspended - begun
            return {"score": job.score(), "seconds": seconds, "rows": _rows(job)}
        finally:
            job.close()


def _rows(job: Job) -> str:
    """A digest of the run's rows."""
    import hashlib

    return hashlib.sha256((job.folder / "run" / "embeddings.npy").read_bytes()).hexdigest()[:16]


@dataclass
class Fault:
    """One event: whom it hits, when, and when the host is back (None: never)."""

    name: str
    host: int
    role: str
    after: float
    back: float | None

    def strike(self, job: Job) -> list[str]:
        """Do it; the words of which one must be said on a host that lives."""
        kind, sign = FAULTS[self.name]
        address = job.net.addresses[self.host]
        if kind == CABLE:
            job.net.cut(self.host)
            return [address] if self.back is None else job.net.addresses  # who is cut off cannot be told afterwards
        found = job.processes(self.host)
        if kind == PROCESS:
            os.kill(found[self.role].pid, sign)
            return [f"{self.role} (process {found[self.role].pid})"]
        for process in found.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(process.pid, sign)
        return [address]

    def heal(self, job: Job) -> None:
        """The host is back: its cable, or its command after a reboot."""
        if FAULTS[self.name][0] == CABLE:
            plug(job.net, self.host)
            return
        for pid in _pids(job.net.hosts[self.host]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.launchers[self.host].wait()
        job.launchers[self.host] = job.start(self.host)

    def __str__(self) -> str:
        back = "never back" if self.back is None else f"back after {self.back:.1f} s"
        return f"{self.name} on host {self.host} ({self.role}), {self.after:.1f} s in, {back}"


def chosen(args: argparse.Namespace, mode: str, seconds: float, chance: random.Random) -> Fault:
    """A random event."""
    name = chance.choice(args.faults)
    host = chance.randrange(args.hosts)
    roles = [f"trainer {host}", *([f"server {host}"] if mode == "kvstore" else [])]
    back: float | None = None
    if FAULTS[name][0] != PROCESS and args.restarts and (host == 0 or chance.random() < 0.5):
        back = chance.uniform(0.0, BACK if host else max(0.0, args.wait - STARTS))
    role = chance.choice(roles) if FAULTS[name][0] == PROCESS else "all of it"
    return Fault(name, host, role, chance.uniform(0.0, seconds), back)


def one_round(args: argparse.Namespace, number: int, known: dict[str, Any]) -> dict[str, Any]:
    """Train, strike, and see how it ends; ``complaint`` is empty where all is well."""
    chance = random.Random(1_000 * args.seed + number)
    mode, seed = chance.choice(args.modes), number % SEEDS
    plain = known["undisturbed"][mode][seed]
    fault = chosen(args, mode, plain["seconds"], chance)
    words = [*args.more, f"parallel.timeout={args.timeout}"]
    words += ["--restarts", str(args.restarts), "--restart-wait", str(args.wait)] if args.restarts else []
    clock = Clock()
    with tempfile.TemporaryDirectory() as place, network(args.hosts) as net:
        job = Job(net, Path(place), mode, seed, words, clock)
        found: dict[str, Any] = {"round": number, "mode": mode, "seed": seed, "fault": str(fault), "name": fault.name}
        try:
            clock.until(lambda: job.trains() or job.launchers[0].poll() is not None, 300)
            clock.until(lambda: job.ends([0], 0.0), fault.after)
            if job.launchers[0].poll() is not None:
                return {**found, "complaint": "" if job.launchers[0].returncode == 0 else "it broke by itself: "
                        + job.said(0)[-2000:], "late": True}  # fmt: skip
            done = (job.folder / "run").exists()
            if done or (FAULTS[fault.name][0] == PROCESS and fault.role not in job.processes(fault.host)):
                return {**found, "complaint": "", "late": True}  # it has just ended
            kept, begun = job.look(), time.time_ns()
            names = fault.strike(job)
            found |= {"kept": kept}
            found["complaint"] = judged(args, job, fault, names, found, plain, begun)
        finally:
            left = job.close()
        found["suspended"] = clock.suspended
        ends = found.pop("ends", [])  # a host that was not brought back lies as it is
        left = [host for host in left if host in ends]
        if left and not found["complaint"]:
            found["complaint"] = f"processes were left on hosts {left}"
        if found["complaint"]:
            found["said"] = [job.said(host)[-3000:] for host in range(args.hosts)]
            if args.keep:
                shutil.copytree(place, Path(args.keep, f"round-{number}"), dirs_exist_ok=True)
    return found


def judged(
    args: argparse.Namespace, job: Job, fault: Fault, names: list[str], found: dict[str, Any], plain: Any, begun: int
) -> str:
    """The complaint about how a job ended that was hit, or nothing."""
    hosts, before = list(range(args.hosts)), time.monotonic() - job.clock.suspended
    dead, back = FAULTS[fault.name][0] == HOST, FAULTS[fault.name][0] == PROCESS
    if not args.restarts:
        living = found["ends"] = [host for host in hosts if not (dead and host == fault.host)]
        ended = job.ends(living, args.timeout + STATED)
        found["seconds"] = time.monotonic() - job.clock.suspended - before
        if not ended:
            return f"after {found['seconds']:.0f} s it has not ended"
        if all(job.launchers[host].returncode == 0 for host in living):
            return "" if (job.folder / "run").exists() else "it ended well without a run"  # it was done anyway
        told = [job.said(host) for host in living if host != fault.host or fault.name.endswith("a process")]
        return "" if any(job.net.addresses[fault.host] in text for text in told) else "the host is not named"
    if fault.back is not None and not job.ends([host for host in hosts if host != fault.host], fault.back):
        fault.heal(job)
        back = True
    ended = job.ends([0], args.timeout + args.wait + STATED + 240)
    found["seconds"] = time.monotonic() - job.clock.suspended - before
    if not ended:
        return "the first host has not ended"
    if job.launchers[0].returncode or not (job.folder / "run").exists():
        return f"the first host ended with exit code {job.launchers[0].returncode}"
    found["ends"] = [host for host in hosts if host != fault.host or back]
    if not job.ends(found["ends"], 60 + args.wait):
        return "a host has not ended"
    again = sorted(step for step, times in job.saved.items() if step <= found["kept"] and max(times) > begun)
    if again:
        return f"step {again[0]} was saved again, and step {found['kept']} had been complete"
    restarted = "restart 1 of" in "".join(map(job.said, hosts))
    found |= {"score": job.score(), "restarted": restarted, "rows": _rows(job)}
    trainers = json.loads((job.folder / "run" / "metrics.json").read_text())["command"]
    found["trainers"] = 1 if "parallel.trainers=1" in trainers else args.hosts
    if restarted and not any(name in job.said(host) for name in names for host in hosts):
        return f"{names[0]} is not named"
    if job.mode == "collective" and found["trainers"] == args.hosts and found["rows"] != plain["rows"]:
        return "its rows are not those of an undisturbed run"
    return ""


def summary(args: argparse.Namespace, known: dict[str, Any]) -> tuple[str, bool]:
    """The table of all rounds, and whether all is well."""
    rounds = [one for one in known["rounds"] if not one.get("late")]
    bad = [one for one in rounds if one["complaint"]]
    rows = []
    for name in args.faults:
        own = [one for one in rounds if one["name"] == name]
        if own:
            seconds = [one["seconds"] for one in own if "seconds" in one]
            again = sum(bool(one.get("restarted")) for one in own)
            fewer = sum(one.get("trainers", args.hosts) < args.hosts for one in own)
            good = sum(not one["complaint"] for one in own)
            times = [statistics.median(seconds), max(seconds)] if seconds else ["", ""]
            rows.append([name, f"{good} of {len(own)}", again, fewer, *times])
    text = tabulate(rows, ["fault", "well", "restarted", "as fewer", "s, median", "s, most"], floatfmt=".1f")
    fine = not bad
    for mode in args.modes if args.restarts else []:
        plain = [one["score"] for one in known["undisturbed"][mode]]
        scores = [one["score"] for one in rounds if one["mode"] == mode and "score" in one]
        if scores:
            mean, std = statistics.mean(plain), statistics.stdev(plain)
            text += f"\n{mode}: micro-F1 {statistics.mean(scores):.2f} (least {min(scores):.2f}) of {len(scores)} runs"
            text += f", {mean:.2f} +- {std:.2f} of {SEEDS} undisturbed ones"
            fine &= statistics.mean(scores) >= mean - std
    late = len(known["rounds"]) - len(rounds)
    text += f"\n{len(rounds) - len(bad)} of {len(rounds)} as they should" + (f"; {late} came too late" if late else "")
    return text, fine


def main() -> None:
    """Run the rounds and print; exit code 1 where one did not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--modes", nargs="+", choices=["collective", "kvstore"], default=["collective", "kvstore"])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--timeout", type=float, default=15.0, help="parallel.timeout")
    parser.add_argument("--wait", type=float, default=25.0, help="--restart-wait")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round after them")
    parser.add_argument("--json", type=Path, help="written after each round, and gone on with")
    parser.add_argument("--more", nargs="*", default=[], help="key=value of the runs")
    parser.add_argument("--keep", help="folder for the files of rounds that ended badly")
    args = parser.parse_args()
    begun = time.monotonic()
    known: dict[str, Any] = {"undisturbed": {}, "rounds": []}
    if args.json is not None and args.json.exists():
        known = json.loads(args.json.read_text())
    for mode in args.modes:
        own = known["undisturbed"].setdefault(mode, [])
        while len(own) < SEEDS:
            own.append(undisturbed(args, mode, len(own)))
            print(f"undisturbed {mode}, seed {len(own) - 1}: {own[-1]}", flush=True)
            _keep(args, known)
    number = max((one["round"] for one in known["rounds"]), default=-1) + 1
    while sum(not one.get("late") for one in known["rounds"]) < args.rounds:
        if time.monotonic() - begun > 60 * args.minutes:
            print(f"after {args.minutes:g} minutes {len(known['rounds'])} rounds; give the same command for the rest")
            break
        one = one_round(args, number, known)
        print(f"{time.monotonic() - begun:6.0f} s  {json.dumps(one)}", flush=True)
        number += 1
        if not one.get("suspended"):
            known["rounds"].append(one)
            _keep(args, known)
    text, fine = summary(args, known)
    print(text)
    sys.exit(not fine)


def _keep(args: argparse.Namespace, known: dict[str, Any]) -> None:
    if args.json is not None:
        args.json.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
