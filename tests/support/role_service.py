# SPDX-License-Identifier: BSD-3-Clause
"""The services of Amazon that give the credentials of a role: of instances (IMDSv2) and of containers."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any

ROLE = "volumes"
ROLES = "/latest/meta-data/iam/security-credentials/"
CONTAINER_PATH = "/v2/credentials/of-a-task"


class RoleService:
    """
    Serves on a free port of 127.0.0.1 until stopped. answer: what it says of the credentials; headers: those of
    all requests, by their first line.
    """

    def __init__(self, access_key: str, secret_key: str, lasts_s: float = 3600.0) -> None:
        self.access_key = access_key
        self.secret_key = secret_key
        self.lasts_s = lasts_s
        self.role = ROLE
        self.status = 200  # of credentials
        self.body: bytes | None = None  # instead of the credentials
        self.delay_s = 0.0  # before each answer
        self.refused_tokens = 0  # that are still given, and then not accepted
        self.container_token: str | None = None  # that a container has to show
        self.requests: list[str] = []
        self.tokens: list[str] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_PUT(self) -> None:
                service.put(self)

            def do_GET(self) -> None:
                service.get(self)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(30)
        self._server.server_close()

    def credentials(self) -> bytes:
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.lasts_s))
        # versitygw knows no sessions: without a token.
        return json.dumps(
            {
                "Code": "Success",
                "LastUpdated": "2026-01-01T00:00:00Z",
                "Type": "AWS-HMAC",
                "AccessKeyId": self.access_key,
                "SecretAccessKey": self.secret_key,
                "Token": None,
                "Other": [{"nested": [']}\\"']}, 1.5e3, True],
                "Expiration": expires,
            }
        ).encode()

    def put(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.requests.append(f"PUT {handler.path}")
        time.sleep(self.delay_s)
        seconds = handler.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        if handler.path != "/latest/api/token" or seconds is None or not 1 <= int(seconds) <= 21600:
            self.answer(handler, 400, b"")
            return
        self.tokens.append(f"token-{len(self.tokens)}==")
        self.answer(handler, 200, self.tokens[-1].encode())

    def get(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.requests.append(f"GET {handler.path}")
        time.sleep(self.delay_s)
        if handler.path == CONTAINER_PATH:
            fits = handler.headers.get("Authorization") == self.container_token
        else:
            fits = bool(self.tokens) and handler.headers.get("X-aws-ec2-metadata-token") == self.tokens[-1]
            if fits and self.refused_tokens:
                self.refused_tokens -= 1
                fits = False
        if not fits:
            self.answer(handler, 401, b"")
        elif handler.path == ROLES:
            self.answer(handler, 200 if self.role else 404, f"{self.role}\n".encode())
        elif handler.path in (ROLES + self.role, CONTAINER_PATH):
            self.answer(handler, self.status, self.credentials() if self.body is None else self.body)
        else:
            self.answer(handler, 404, b"")

    @staticmethod
    def answer(handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        try:
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client had enough of waiting
