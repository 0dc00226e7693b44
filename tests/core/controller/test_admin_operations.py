"""Administrative requests: which are written again, and the error codes of those that fail."""

from __future__ import annotations

import pytest

from kreplog.core.controller.admin_operations import admin_error, directory_in_retry
from kreplog.errors import (
    BadVersionError,
    ConnectionLossError,
    ErrorCode,
    InvalidTopicError,
    KreplogError,
    NodeExistsError,
    NoNodeError,
)


@pytest.mark.parametrize("index", [0, None])
def test_a_request_is_written_again_with_the_directory_as_it_is_now(index: int | None) -> None:
    assert directory_in_retry(NodeExistsError("/admin/a exists", index=index)) is False
    assert directory_in_retry(NoNodeError("/admin/a is gone", index=index)) is True


@pytest.mark.parametrize("error", [NodeExistsError("/admin/a/0 exists", index=1), NoNodeError("/b is gone", index=2)])
def test_a_request_that_meets_another_is_not_written_again(error: NodeExistsError | NoNodeError) -> None:
    assert directory_in_retry(error) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionLossError("no response"), ErrorCode.REQUEST_TIMED_OUT),
        (BadVersionError("written in the meantime"), ErrorCode.REQUEST_TIMED_OUT),
        (InvalidTopicError("a#b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (KreplogError("unexpected"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_clients_repeat_a_request_that_the_store_has_failed(error: KreplogError, code: ErrorCode) -> None:
    assert admin_error(error) is code
