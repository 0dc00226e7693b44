"""Regular expressions of clients: which names match, what is refused, and that none takes long or much memory."""

from __future__ import annotations

import pytest

pytest.importorskip("re2", reason="needs google-re2, the extra `cluster`")

from kreplog.core.patterns import MAX_LENGTH, matching, whole_text_matcher

NAMES = ("orders", "orders-eu", "my-orders", "__consumer_offsets", "a" * 249)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders-eu"}),
        (".*orders", {"orders", "my-orders"}),
        ("(?i)ORDERS", {"orders"}),
        ("__.*", {"__consumer_offsets"}),
        ("(a*)*", {"a" * 249}),
        ("", set()),
    ],
)
def test_whole_names_match(pattern: str, found: set[str]) -> None:
    assert matching(pattern, NAMES) == frozenset(found)


@pytest.mark.parametrize(
    "pattern", ["(", "*", "[a", "a(?=b)", r"(a)\1", r"\pL{100}", "(.*){900}", "x" * (MAX_LENGTH + 1)]
)
def test_what_re2_does_not_know_or_what_takes_too_much_is_refused(pattern: str) -> None:
    assert whole_text_matcher(pattern) is None
    assert matching(pattern, NAMES) is None
