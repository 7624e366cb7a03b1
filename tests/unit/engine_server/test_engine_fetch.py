"""Downloads against real local servers: digests, resuming, refusals, and a small Hugging Face hub."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forebay.contract.errors import InvalidSpec, UpstreamFault
from forebay.engine.fetch import check_http, fetch_http, file_name

CONTENT = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Served:
    """What a file server does: cuts its answer after `cuts[i]` bytes on call i, with or without ranges."""

    content: bytes = CONTENT
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    knows_ranges: bool = True
    ranges: list[str] = field(default_factory=list)


@contextmanager
def file_server(served: Served) -> Iterator[str]:
    """Base URL of a server for one file."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            served.ranges.append(asked)
            if served.statuses:
                self.send_error(served.statuses.pop(0))
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and served.knows_ranges else 0
            body = served.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: served.cuts.pop(0)] if served.cuts else body)

        def log_message(self, *_arguments: object) -> None:
            pass

    yield from _serving(Handler)


def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fetch(base: str, out: Path, digest: str = DIGEST, max_bytes: int = 1 << 30) -> tuple[Path, list[float]]:
    """Fetch model.gguf and return its path and the pauses between tries."""
    pauses: list[float] = []
    return fetch_http(check_http(f"{base}/a/model.gguf", digest), out, max_bytes, pauses.append), pauses


def test_a_file_arrives_whole_under_its_name_and_a_second_call_downloads_nothing(tmp_path: Path) -> None:
    served = Served()
    with file_server(served) as base:
        path, pauses = fetch(base, tmp_path)
        fetch(base, tmp_path)
    assert (path, path.read_bytes(), pauses) == (tmp_path / "model.gguf", CONTENT, [])
    assert len(served.ranges) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_connection_that_is_cut_is_resumed_where_the_server_can(tmp_path: Path, knows_ranges: bool) -> None:
    served = Served(cuts=[1000, 300_000], knows_ranges=knows_ranges)
    with file_server(served) as base:
        path, pauses = fetch(base, tmp_path)
    assert path.read_bytes() == CONTENT
    assert len(pauses) == 2
    assert served.ranges[1] == "bytes=1000-"


def test_errors_of_the_server_are_tried_again_and_then_given_up(tmp_path: Path) -> None:
    served = Served(statuses=[503, 500])
    with file_server(served) as base:
        assert fetch(base, tmp_path)[0].read_bytes() == CONTENT
        served.statuses = [503] * 50
        with pytest.raises(UpstreamFault, match="gave up"):
            fetch(base, tmp_path / "other")
    assert len(served.ranges) == 3 + 5


def test_a_file_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    served = Served(statuses=[404])
    with file_server(served) as base, pytest.raises(InvalidSpec, match="404"):
        fetch(base, tmp_path)
    assert len(served.ranges) == 1


def test_a_wrong_digest_leaves_nothing_behind(tmp_path: Path) -> None:
    with file_server(Served()) as base, pytest.raises(InvalidSpec, match=DIGEST) as refusal:
        fetch(base, tmp_path, digest="0" * 64)
    assert refusal.value.field == "sha256"
    assert list(tmp_path.iterdir()) == []


def test_a_file_over_the_limit_is_refused_before_it_is_downloaded(tmp_path: Path) -> None:
    with file_server(Served()) as base, pytest.raises(InvalidSpec, match="limit of 1000"):
        fetch(base, tmp_path, max_bytes=1000)


@pytest.mark.parametrize(
    ("url", "digest", "flag"),
    [
        ("ftp://x/y", DIGEST, "url"),
        ("file:///etc/passwd", DIGEST, "url"),
        ("http:///y", DIGEST, "url"),
        ("http://x/y", "abc", "sha256"),
    ],
)
def test_a_source_that_cannot_be_is_refused_by_flag(url: str, digest: str, flag: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        check_http(url, digest)
    assert refusal.value.field == flag


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://x/a/b.gguf?sig=1", "b.gguf"),
        ("http://x/..", "model.gguf"),
        ("http://x/", "model.gguf"),
        ("http://x/a%2F..%2F..%2Fetc", "etc"),
        ("http://x/a%00b", "a_b"),
    ],
)
def test_a_file_name_from_a_url_never_leaves_the_folder(url: str, name: str) -> None:
    assert file_name(url) == name


@contextmanager
def hub() -> Iterator[str]:
    """A hub with the repository team/tiny at revision v1."""
    files = {
        "config.json": b'{"a": 1}',
        "model.safetensors": CONTENT,
        "model.gguf": b"another format",
        "notes.txt": b"not needed",
    }

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            name = path.rsplit("/", 1)[-1]
            if path.startswith("/api/models/team/tiny/tree/"):
                entries = [
                    {"type": "file", "path": each, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}  # noqa: S324
                    for each, content in files.items()
                ]
                self._send(json.dumps(entries).encode(), with_body=with_body)
            elif path.startswith("/api/models/team/tiny") and name in {COMMIT, "v1"}:
                siblings = [{"rfilename": each, "size": len(content)} for each, content in files.items()]
                self._send(
                    json.dumps({"id": "team/tiny", "sha": COMMIT, "siblings": siblings}).encode(), with_body=with_body
                )
            elif path.startswith(f"/team/tiny/resolve/{COMMIT}/") and name in files:
                self._send(files[name], with_body=with_body)
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _send(self, body: bytes, *, with_body: bool) -> None:
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')  # noqa: S324
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    yield from _serving(Handler)


def hub_fetch(base: str, out: Path, repository: str, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run the fetch command against a hub, as an init container does."""
    command = [sys.executable, "-m", "forebay.engine", "fetch", "--hf-repo", repository, "--hf-revision", "v1"]
    env = {"HF_ENDPOINT": base, "HOME": str(out.parent)}
    return subprocess.run(
        [*command, "--out", str(out), *more], capture_output=True, text=True, env=env, check=False, timeout=60
    )


def test_a_hugging_face_repository_is_fetched_from_the_endpoint_of_the_environment(tmp_path: Path) -> None:
    with hub() as base:
        done = hub_fetch(base, tmp_path / "model", "team/tiny", "--format", "safetensors")
        either = hub_fetch(base, tmp_path / "either", "team/tiny")
        assert done.returncode == 0, done.stderr
        missing = hub_fetch(base, tmp_path / "missing", "team/nothing")
        too_large = hub_fetch(base, tmp_path / "large", "team/tiny", "--max-bytes", "1000")
        invalid = hub_fetch(base, tmp_path / "invalid", "a/b/c")
    names = sorted(entry.name for entry in (tmp_path / "model").iterdir() if not entry.name.startswith("."))
    assert names == ["config.json", "model.safetensors"]
    assert either.returncode == 0, either.stderr
    assert (tmp_path / "either" / "model.gguf").exists()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == CONTENT
    for failed, words in ((missing, "was not found"), (too_large, "limit of 1000"), (invalid, "hf-repo")):
        assert failed.returncode == 2
        assert words in failed.stderr
        assert "Traceback" not in failed.stderr
