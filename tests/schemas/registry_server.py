"""The REST API of a schema registry, as far as serializers use it; Confluent's own client speaks to it in the tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SchemaRegistryServer(ThreadingHTTPServer):
    """On a port of its own. requests: the method and path of each. broken: answer with this status and body instead.
    versions_in_answers: as newer registries do."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.subjects: dict[str, list[int]] = {}
        self.schemas: dict[int, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.authorization: str | None = None
        self.broken: tuple[int, bytes] | None = None
        self.redirected_to: str | None = None
        self.versions_in_answers = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def register(self, subject: str, schema: dict[str, Any]) -> dict[str, Any]:
        known = next(
            (number for number, registered in self.schemas.items() if registered == schema), len(self.schemas) + 1
        )
        self.schemas[known] = schema
        versions = self.subjects.setdefault(subject, [])
        if known not in versions:
            versions.append(known)
        return {"id": known} | ({"version": versions.index(known) + 1} if self.versions_in_answers else {})

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        parts = path.partition("?")[0].strip("/").split("/")
        if method == "POST":
            schema = {"schemaType": "AVRO", "references": []} | {
                name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)
            }
            if parts[2:] == ["versions"]:
                return 200, self.register(parts[1], schema)
            versions = self.subjects.get(parts[1], [])
            for version, number in enumerate(versions, 1):
                if self.schemas[number] == schema:
                    return 200, {"subject": parts[1], "id": number, "version": version, **schema}
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if parts[:2] == ["schemas", "ids"]:
            if int(parts[2]) in self.schemas:
                return 200, self.schemas[int(parts[2])]
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if parts[0] != "subjects":
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        if parts[1] not in self.subjects:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        versions = self.subjects[parts[1]]
        version = len(versions) if parts[3] == "latest" else int(parts[3])
        if 0 < version <= len(versions):
            number = versions[version - 1]
            return 200, {"subject": parts[1], "id": number, "version": version, **self.schemas[number]}
        return 404, {"error_code": 40402, "message": "Version not found"}


class _Handler(BaseHTTPRequestHandler):
    server: SchemaRegistryServer

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.authorization = self.headers.get("Authorization")
        if self.server.redirected_to is not None:
            self.send_response(307)
            self.send_header("Location", self.server.redirected_to + self.path)
            self.end_headers()
            return
        if self.server.broken is not None:
            status, data = self.server.broken
        else:
            status, answer = self.server.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def registry_server() -> Iterator[SchemaRegistryServer]:
    server = SchemaRegistryServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
