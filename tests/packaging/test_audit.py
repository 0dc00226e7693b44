"""`make audit`: it fails for known vulnerabilities, and with another status where it cannot know."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.packaging import audit

SAFE = {"name": "safe", "version": "1", "vulns": []}
UNSAFE = {"name": "unsafe", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"], "aliases": []}]}
OWN = {"name": "own", "skip_reason": "not on the index"}


def run(monkeypatch: pytest.MonkeyPatch, status: int, out: str, err: str = "") -> int:
    def outcome(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert "pip_audit" in command
        return subprocess.CompletedProcess(command, status, out, err)

    monkeypatch.setattr(audit, "find_spec", lambda name: name)
    monkeypatch.setattr(subprocess, "run", outcome)
    return audit.main()


def test_known_vulnerabilities_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, 1, json.dumps({"dependencies": [SAFE, UNSAFE, OWN]})) == 1
    assert capsys.readouterr().out.splitlines() == [
        "own: not audited: not on the index",
        "unsafe 2: PYSEC-1, fixed in 3",
        "2 packages audited, 1 known vulnerabilities",
    ]
    assert run(monkeypatch, 0, json.dumps({"dependencies": [SAFE]})) == 0


@pytest.mark.parametrize("out", ["", "{}", "[]", "Found nothing"])
def test_what_is_not_known_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    assert run(monkeypatch, 1, out, "Traceback\nServiceError: no route to host\n") == audit.UNKNOWN
    assert capsys.readouterr().err == "NOT AUDITED: pip-audit ends with status 1: ServiceError: no route to host\n"
    assert run(monkeypatch, 0, json.dumps({"dependencies": [OWN]})) == audit.UNKNOWN
    assert capsys.readouterr().err == "NOT AUDITED: no package is known there: not on the index\n"


def test_without_pip_audit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(audit, "find_spec", lambda name: None)
    assert audit.main() == audit.UNKNOWN == 3
    assert capsys.readouterr().err == "NOT AUDITED: pip-audit is not installed: `make setup` installs it\n"
