"""HttpRegistry: a schema registry with the REST API of Confluent's, as Karapace, Apicurio and Redpanda have it."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from kreplog.errors import SchemaRegistryError, UsageError
from kreplog.schemas.registry import Reference, Schema, SchemaVersion

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
NOT_FOUND = {40401, 40402, 40403}
"""Error codes of a subject, a version, or a schema that does not exist."""

MAX_RESPONSE = 64 << 20
MAX_ID = 2**32 - 1


class HttpRegistry:
    """A schema registry by its URL. url: `http://host:port`, or https; with `user:password@` for HTTP basic
    authentication, which no other host is sent. timeout: seconds without an answer, or a further part of it. Raises
    UsageError."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            is_url = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            is_url = False
        if not is_url:
            raise UsageError(f"{url!r} is no URL of a schema registry, such as http://localhost:8081")
        self._authorization: str | None = None
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._authorization = "Basic " + base64.b64encode(user.encode()).decode()
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._timeout = timeout
        self._registered: dict[tuple[str, Schema], SchemaVersion] = {}

    def __repr__(self) -> str:
        return f"HttpRegistry({self._url!r})"

    def register(self, subject: str, schema: Schema) -> SchemaVersion:
        registered = self._registered.get((subject, schema))
        if registered is None:
            answer = self._request(_path(subject, "/versions"), _body(schema))
            if answer is not None and "version" not in answer:  # of older registries
                answer = self._request(_path(subject), _body(schema))
            if answer is None:
                raise SchemaRegistryError(
                    f"{self._url}: subject {subject} vanished while a schema was registered in it"
                )
            registered = self._remembered(subject, schema, answer)
        return registered

    def find(self, subject: str, schema: Schema) -> SchemaVersion | None:
        registered = self._registered.get((subject, schema))
        if registered is None:
            answer = self._request(_path(subject), _body(schema))
            if answer is None:
                return None
            registered = self._remembered(subject, schema, answer)
        return registered

    def _remembered(self, subject: str, schema: Schema, answer: dict[str, Any]) -> SchemaVersion:
        registered = SchemaVersion(self._field(answer, "id", int), self._field(answer, "version", int))
        if not 0 <= registered.id <= MAX_ID:
            raise self._unexpected(answer)
        self._registered[subject, schema] = registered
        return registered

    def schema(self, schema_id: int) -> Schema | None:
        return self._schema(f"/schemas/ids/{schema_id}")

    def version(self, subject: str, version: int) -> Schema | None:
        return self._schema(_path(subject, f"/versions/{version}"))

    def has_subject(self, subject: str) -> bool:
        return self._request(_path(subject, "/versions/latest")) is not None

    def _schema(self, path: str) -> Schema | None:
        answer = self._request(path)
        if answer is None:
            return None
        references = answer.get("references") or ()
        try:
            found = tuple(
                Reference(str(item["name"]), str(item["subject"]), int(item["version"])) for item in references
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._unexpected(answer) from error
        return Schema(str(answer.get("schemaType", "AVRO")), self._field(answer, "schema", str), found)

    def _request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer, None where there is no such thing. Raises SchemaRegistryError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        request = urllib.request.Request(self._url + path, data, headers)
        if self._authorization is not None:
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                answer = json.loads(response.read(MAX_RESPONSE))
        except urllib.error.HTTPError as error:
            with error:
                code, message = _refusal(error)
            if code in NOT_FOUND:
                return None
            raise SchemaRegistryError(f"{self._url}{path} answers {error.code}: {message}") from None
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise SchemaRegistryError(f"{self._url}{path} is unreachable: {error}; try again") from error
        if not isinstance(answer, dict):
            raise self._unexpected(answer)
        return answer

    def _field(self, answer: dict[str, Any], name: str, kind: type) -> Any:
        if not isinstance(answer.get(name), kind):
            raise self._unexpected(answer)
        return answer[name]

    def _unexpected(self, answer: object) -> SchemaRegistryError:
        return SchemaRegistryError(f"{self._url} is no schema registry: it answers {str(answer)[:200]}")


def _path(subject: str, rest: str = "") -> str:
    return f"/subjects/{urllib.parse.quote(subject, safe='')}{rest}"


def _body(schema: Schema) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text, "schemaType": schema.kind}
    if schema.references:
        body["references"] = [reference._asdict() for reference in schema.references]
    return body


def _refusal(error: urllib.error.HTTPError) -> tuple[int, str]:
    """The registry's own error code, and what it says."""
    try:
        answer = json.loads(error.read(MAX_RESPONSE))
        return int(answer["error_code"]), str(answer["message"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError, http.client.HTTPException):
        return 0, error.reason
