"""The packages of this environment that have known vulnerabilities, by pip-audit: `make audit`.

Exits with status 1 if there are some, and with UNKNOWN where nothing is known: without pip-audit, and where it reaches
no database of vulnerabilities.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

TIMEOUT_S = 600

UNKNOWN = 3
"""Exit status where nothing was audited, by which nobody takes it for an audit that has found nothing."""


def main(arguments: Sequence[str] = ()) -> int:
    """The exit status. arguments: of pip-audit, in addition."""
    if find_spec("pip_audit") is None:
        return _not_audited("pip-audit is not installed: `make setup` installs it")
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner=off"]
    try:
        outcome = subprocess.run(
            [*command, "--format=json", *arguments], check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return _not_audited(f"pip-audit has had no answer for {TIMEOUT_S} s")
    try:
        dependencies: list[dict[str, Any]] = json.loads(outcome.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = outcome.stderr.strip().splitlines() or ["no reason"]
        return _not_audited(f"pip-audit ends with status {outcome.returncode}: {reason[-1][:300]}")
    skipped = [each for each in dependencies if "skip_reason" in each]
    if len(skipped) == len(dependencies):
        return _not_audited(f"no package is known there: {skipped[0]['skip_reason'] if skipped else 'there are none'}")
    for each in skipped:
        print(f"{each['name']}: not audited: {each['skip_reason']}")
    found = [(each, vulnerability) for each in dependencies for vulnerability in each.get("vulns", ())]
    for each, vulnerability in found:
        fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
        print(f"{each['name']} {each['version']}: {vulnerability['id']}, fixed in {fixed}")
    print(f"{len(dependencies) - len(skipped)} packages audited, {len(found)} known vulnerabilities")
    return 1 if found else 0


def _not_audited(reason: str) -> int:
    print(f"NOT AUDITED: {reason}", file=sys.stderr)
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
