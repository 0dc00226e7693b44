"""Regular expressions for transactional ids: as Python's `re` where both know them, and in linear time (KIP-1152)."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog.core.transactions.id_pattern import MAX_STATES, IdPattern, InvalidPatternError

EXPRESSIONS = [
    *(
        "",
        "a",
        "abc",
        "a|b",
        "|a",
        "(a|bc)*",
        "a+b?",
        "a{2}",
        "a{1,}b",
        "a{0,2}",
        "(ab){2,3}c",
        "a{,2}",
        "a{x}",
        "{",
        "a}",
    ),
    *(
        "[abc]+",
        "[^a-c]",
        "[a-]b",
        "[]a]",
        "[^]a]",
        r"[\d_]+",
        r"\d+\-\w*",
        r"\S\s\D\W",
        r"[^\w]",
        r"\.\*",
        ".*",
        "a.c",
    ),
    *(
        "^a$",
        "^",
        "$",
        "a^",
        "$a",
        "^^a$$",
        "(^a|b$)c?",
        r"\Aab\Z".replace("Z", "z"),
        "a*?b+?c??",
        "(?:a|b)c",
        "((a)|b)*",
        "()*",
        "(a*)*",
    ),
    *(r"\t|\n", "[-a]", "[a-c-e]", "(|a)b"),
]
TEXT = st.text("abc-_.1 \n]^${}", max_size=8)


@settings(max_examples=1500)
@given(expression=st.sampled_from(EXPRESSIONS), text=TEXT)
def test_the_same_as_python_where_both_know_it(expression: str, text: str) -> None:
    theirs = expression.replace(r"\z", r"\Z").replace("$", r"\Z").replace("a{,2}", r"a\{,2}")
    assert IdPattern(expression).matches(text) is (re.fullmatch(theirs, text) is not None)


PIECES = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "(a|b)", "(ab)", r"\d", "(^)", "($)"])
MADE = st.lists(st.tuples(PIECES, st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,2}", "{1,}"])), max_size=5)


@settings(max_examples=500)
@given(pieces=MADE, more=MADE, text=st.text("ab1", max_size=7))
def test_the_same_as_python_for_expressions_put_together(
    pieces: list[tuple[str, str]], more: list[tuple[str, str]], text: str
) -> None:
    first, second = ("".join(piece + times for piece, times in given) for given in (pieces, more))
    expression = f"({first}|{second})*{first}"
    theirs = re.compile(expression.replace("$", r"\Z"))
    assert IdPattern(expression).matches(text) is (theirs.fullmatch(text) is not None)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(a", r"no \) for a \("),
        ("a)", r"a \) without its \("),
        ("*a", r"nothing that \* repeats"),
        ("a**", "a repetition of a repetition"),
        ("[a", r"no \] for a \["),
        ("[]", r"no \] for a \["),
        ("[c-a]", "a wrong range"),
        (r"[\d-a]", "a wrong range"),
        ("a\\", "without a character"),
        (r"(a)\1", "not supported"),
        (r"\bword", "not supported"),
        (r"\pN", "not supported"),
        ("[[:alpha:]]", "a class by name"),
        ("(?=a)", "a kind of group"),
        ("(?i)a", "a kind of group"),
        ("a{1001}", "a wrong number of repetitions"),
        ("a{3,2}", "a wrong number of repetitions"),
        ("(a{1000}){1000}", f"{MAX_STATES} states"),
        ("(" * 60 + ")" * 60, "groups in one another"),
    ],
)
def test_wrong_expressions(expression: str, reason: str) -> None:
    with pytest.raises(InvalidPatternError, match=reason):
        IdPattern(expression)


@given(st.text(alphabet="ab()[]{}|*+?^$\\.-,:1", max_size=12))
def test_any_expression_is_made_or_refused(expression: str) -> None:
    with suppress(InvalidPatternError):
        IdPattern(expression).matches("ab")


def test_no_expression_takes_exponential_steps() -> None:
    """A backtracking matcher takes 2**5000 of them."""
    for expression in ("(a+)+b", "(a|a)*b", "(a?){40}a{40}b"):
        assert not IdPattern(expression).matches("a" * 5000)


def test_what_takes_too_much_time_is_refused() -> None:
    pattern = IdPattern("(a?b?){900}")
    with pytest.raises(InvalidPatternError, match="too much time"):
        pattern.matches("ab" * 450)
