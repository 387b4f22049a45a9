"""The link of a job: as a user gives it, and as the ranks of two hosts measure it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.transport.link import FIRST_BYTES, Link
from graph_emb.transport.process_group import SHARED_VARIABLE, ProcessGroup
from tests.netns import Network, network
from tests.ranks import Ranks

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 200
MEASURE = """
import json, os, sys, time
import graph_emb as ge
from graph_emb.transport.link import Link
from graph_emb.transport.process_group import ProcessGroup
group = ProcessGroup(timeout=60)
begun, found = time.perf_counter(), []
for _ in range(int(sys.argv[1])):
    found.append(Link.measure(group, int(os.environ["GROUP_RANK"])).as_dict())
print(json.dumps([found, time.perf_counter() - begun, group.link.bytes_out]))
group.close()
"""


@pytest.mark.parametrize(
    ("words", "expected"), [("10gbit", (10.0, 50.0)), ("250Mbit", (0.25, 50.0)), ("1gbit,80us", (1.0, 80.0))]
)
def test_links_are_read(words: str, expected: tuple[float, float]) -> None:
    link = Link.parse(words)
    assert (link.gbit, link.latency_us) == expected


@pytest.mark.parametrize("words", ["", "10", "fast", "0gbit", "1.1.1gbit", "10gbit,0us"])
def test_other_links_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="give a rate, as 10gbit"):
        Link.parse(words)


def measured(net: Network, machines: list[int], times: int) -> list[tuple[list[dict[str, float]], float, int]]:
    """What each rank found, in how many seconds, and the bytes that it counted as traffic of training.

    Args:
        machines: Of each rank; the first host has the first one, the second host the others.
        times: Measurements, one after the other.
    """
    started = []
    for rank, machine in enumerate(machines):
        told = {"RANK": rank, "WORLD_SIZE": len(machines), "GROUP_RANK": machine, "MASTER_PORT": 29_500}
        environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
        environment |= {"MASTER_ADDR": net.addresses[0], SHARED_VARIABLE: "0", "PYTHONPATH": str(CHECKOUT)}
        command = net.on(min(rank, 1), [sys.executable, "-c", MEASURE, str(times)])
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=PATIENCE)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * len(machines)
    return [tuple(json.loads(text)) for text in said]


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
def test_two_hosts_agree_on_the_rate_of_a_shaped_link() -> None:
    """The bytes of both ranks of the second host share its cable: each of them alone has half the rate."""
    with network(2) as net:
        (fast,), _, counted = measured(net, [0, 1], 1)[0]
        for host in range(2):
            net.throttle(host, 40)
        two = measured(net, [0, 1], 3)
        three = measured(net, [0, 1, 1], 1)
    assert two[0][0] == two[1][0], "both hosts know the same"
    for links in (two, three):
        for link in links[0][0]:
            assert 0.012 < link["gbit"] < 0.08, "the shaper lets .04 pass; a loaded machine less"
    assert fast["gbit"] > 2 * two[0][0][-1]["gbit"]
    assert 0 < fast["latency_us"] < 1e5
    assert counted == 0, "a measurement is no traffic of a training"


def on_one_machine() -> Link | None:
    group = ProcessGroup(timeout=60, shared_memory=False)
    try:
        return Link.measure(group, 3)
    finally:
        group.close()


@pytest.mark.dist
def test_nothing_is_measured_where_nothing_leaves_a_machine(ranks: Ranks) -> None:
    assert ranks.run(on_one_machine, 2) == [None, None]


def ways_of_a_measurement() -> tuple[set[int], set[int], float]:
    """The connections by which small and long messages went, and the rate between two ranks as on two machines."""
    group, small, long, original = ProcessGroup(timeout=60, shared_memory=False), set(), set(), dist.all_to_all_single

    def noted(out: torch.Tensor, send: torch.Tensor, *args: Any, **options: Any) -> Any:
        used = long if out.nbytes + send.nbytes >= FIRST_BYTES else small
        used.add([group._group, group._down].index(options["group"]))
        return original(out, send, *args, **options)

    try:
        dist.all_to_all_single = noted
        link = Link.measure(group, group.rank)
        assert link is not None
        return small, long, link.gbit
    finally:
        dist.all_to_all_single = original
        group.close()


@pytest.mark.dist
def test_a_link_is_measured_in_both_directions_at_once(ranks: Ranks) -> None:
    """As rows travel; by one connection the rate was half of the link's."""
    (small, long, rate), other = ranks.run(ways_of_a_measurement, 2)
    assert (small, long) == ({0}, {0, 1})
    assert rate == other[2] > 0


def measured_by_one() -> str:
    """The error of the first rank, while the second one is gone."""
    group = ProcessGroup(timeout=3, shared_memory=False)
    try:
        if group.rank == 0:
            Link.measure(group, 0)
        return ""
    except ge.PeerError as error:
        return str(error)
    finally:
        group.close()


@pytest.mark.dist
def test_a_rank_that_is_gone_is_named(ranks: Ranks) -> None:
    said = ranks.run(measured_by_one, 2)[0]
    assert "rank 0 of 2, in measurement of the link: rank 1 no longer answers" in said
