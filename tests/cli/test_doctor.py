"""``graph-emb doctor``: what it finds wrong is said with the next step."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graph_emb.cli import doctor
from tests.cli.conftest import Outcome

Cli = Callable[..., Outcome]


def test_the_machine_is_described_and_optional_packages_are_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "complaints", lambda: [])
    found = cli("doctor", tmp_path)
    assert found.code == 0
    for text in ("instructions", "open files", "optional: UMAP maps in report.html: pip install umap-learn"):
        assert text in found.out
    monkeypatch.setattr(doctor, "complaints", lambda: ["dgl cannot be imported"])
    found = cli("doctor", tmp_path)
    assert found.code == 1
    assert "! dgl cannot be imported" in found.out


def test_a_package_that_does_not_import_and_small_limits_are_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> object:
        raise ImportError(f"no {name}\nhere") if name == "dgl" else AttributeError("torch moved it")

    monkeypatch.setattr(importlib, "import_module", fail)
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda what: (64, 64))
    monkeypatch.setattr(doctor.psutil, "disk_usage", lambda place: type("Usage", (), {"free": 2**20})())
    found = list(doctor.complaints())
    assert [text.partition(" (")[0].partition(";")[0] for text in found] == [
        "dgl cannot be imported",
        "ogb cannot be imported",
        "only 64 open files are allowed",
        "/dev/shm has 1 MiB free",
    ]
    assert "(no dgl here)" in found[0]


def test_instructions_are_read_from_the_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2 avx fma\n")
    assert doctor.instructions(tmp_path / "cpuinfo") == ["avx2", "fma"]
    assert doctor.instructions(tmp_path / "none") == []


def test_a_job_that_fails_or_hangs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "JOBS", {"broken": ("--no-such-flag",)})
    (found,) = doctor.failed_jobs()
    assert found.startswith("broken: graph-emb: error: unknown flag '--no-such-flag'")
    (tmp_path / "hang").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "hang").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "hang"))
    assert list(doctor.failed_jobs(timeout=0.1)) == [
        "broken: no end within 0 s; is the address of localhost reachable?"
    ]


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
def test_jobs_of_both_modes_work_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(doctor.failed_jobs(timeout=240)) == []
    assert capsys.readouterr().out == "works: two trainers, collective\nworks: a server, kvstore\n"
