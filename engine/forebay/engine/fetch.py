"""Brings a model's files into a folder: one file over HTTP by digest, or a Hugging Face repository by revision.

A file appears under its final name only when it is complete and its digest is right. Interrupted downloads resume;
tries and sizes are bounded; a file that is already there and right is left alone, so a restarted init container costs
nothing. Every failure is an `InvalidSpec` or `UpstreamFault` that says what to do. Called by `__main__`.
"""

import fnmatch
import hashlib
import http.client
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.contract.errors import InvalidSpec, UpstreamFault

DEFAULT_MAX_BYTES = 1 << 40
_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 60.0
_TRIES_WITHOUT_PROGRESS = 5
_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_HF_TEXT_FILES = ("*.json", "*.jinja", "tokenizer*")
_HF_WEIGHT_FILES = {"auto": ("*.safetensors", "*.gguf"), "safetensors": ("*.safetensors",), "gguf": ("*.gguf",)}
FORMATS = tuple(_HF_WEIGHT_FILES)
_USER_AGENT = "forebay-fetch/1"


@dataclass(frozen=True, slots=True)
class HttpFile:
    """A file at `url` whose content has the hex digest `sha256`."""

    url: str
    sha256: str


def check_http(url: str, sha256: str) -> HttpFile:
    """A valid source; raises `InvalidSpec` naming the flag."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidSpec(f"url: must be an http or https URL, not {url!r}", field="url")
    digest = sha256.removeprefix("sha256:").lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise InvalidSpec("sha256: must be 64 hex digits", field="sha256")
    return HttpFile(url, digest)


def file_name(url: str) -> str:
    """The last part of the URL's path as a plain file name."""
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")
    return name or "model.gguf"


def fetch_http(source: HttpFile, out: Path, max_bytes: int, sleep: Callable[[float], None]) -> Path:
    """Download into the folder `out` and return the file's path; `sleep` is called between tries."""
    out.mkdir(parents=True, exist_ok=True)
    target = out / file_name(source.url)
    if target.is_file() and _digest(target) == source.sha256:
        return target
    partial = target.with_name(f".{target.name}.{source.sha256[:16]}.partial")
    _download_with_tries(source.url, partial, max_bytes, sleep)
    found = _digest(partial)
    if found != source.sha256:
        partial.unlink()
        raise InvalidSpec(
            f"sha256: {source.url} has digest {found}, not {source.sha256}; fix the digest or the URL", field="sha256"
        )
    partial.rename(target)
    return target


def _download_with_tries(url: str, partial: Path, max_bytes: int, sleep: Callable[[float], None]) -> None:
    """Tries until `partial` is complete; gives up after several tries that brought nothing."""
    failures, is_complete = 0, False
    while not is_complete:
        before = _size(partial)
        try:
            _download(url, partial, max_bytes)
            is_complete = True
        except (OSError, http.client.HTTPException) as error:
            problem = _permanent(error, url)
            if problem is not None:
                raise problem from error
            failures = 0 if _size(partial) > before else failures + 1
            if failures >= _TRIES_WITHOUT_PROGRESS:
                raise UpstreamFault(f"{url}: gave up after {failures} tries without progress: {error}") from error
            sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])


def _permanent(error: Exception, url: str) -> InvalidSpec | None:
    """The error to give up with at once: the server refused, or there is no space."""
    if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in {408, 416, 429}:
        return InvalidSpec(f"url: {url} answered {error.code} {error.reason}", field="url")
    if isinstance(error, OSError) and error.errno == 28:
        return InvalidSpec("out: no space left for the model; give the volume more room", field="out")
    return None


def _download(url: str, partial: Path, max_bytes: int) -> None:
    """Fetch what is missing of `partial`. Returns when the server's content is complete; raises when it was cut."""
    have = _size(partial)
    headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - check_http allows http and https only
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        if error.code == 416 and _total_size(error.headers.get("Content-Range", "")) == have:
            return
        if error.code == 416:
            partial.unlink(missing_ok=True)
        raise
    with response:
        _store(response, partial, have if response.status == 206 else 0, max_bytes)


def _store(response: Any, partial: Path, offset: int, max_bytes: int) -> None:
    """Write the answer's body at `offset`, dropping what lies behind it; raises when it ends before its length."""
    length = response.headers.get("Content-Length")
    expected = offset + int(length) if length is not None and length.isdigit() else None
    _check_room(partial.parent, expected, offset, max_bytes)
    with partial.open("ab" if offset else "wb") as file:
        offset += _copy(response, file, max_bytes - offset)
    if expected is not None and offset != expected:
        raise ConnectionError(f"the connection was cut at {offset} of {expected} bytes")


def _total_size(content_range: str) -> int:
    total = content_range.rpartition("/")[2]
    return int(total) if total.isdigit() else 0


def _check_room(folder: Path, expected: int | None, offset: int, max_bytes: int) -> None:
    if expected is None:
        return
    if expected > max_bytes:
        raise InvalidSpec(f"url: {expected} bytes is more than the limit of {max_bytes}", field="url")
    free = shutil.disk_usage(folder).free
    if expected - offset > free:
        raise InvalidSpec(f"out: {expected - offset} bytes are to come, {free} are free", field="out")


def _copy(response: Any, file: Any, room: int) -> int:
    copied = 0
    while chunk := response.read(_CHUNK_BYTES):
        copied += len(chunk)
        if copied > room:
            raise InvalidSpec("url: the content is larger than the limit", field="url")
        file.write(chunk)
    return copied


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_hugging_face(repository: str, revision: str, out: Path, max_bytes: int, weights: str = "auto") -> Path:
    """Download a repository's model files at one revision into `out`; HF_ENDPOINT and HF_TOKEN are the library's.

    `weights` is one of `FORMATS`: a repository that holds both formats is asked for one of them only.
    """
    # The library reads its settings at import, and only this command needs it.
    import huggingface_hub  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    patterns = [*_HF_WEIGHT_FILES[weights], *_HF_TEXT_FILES]
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
        size = sum(entry.size or 0 for entry in info.siblings or [] if _matches(entry.rfilename, patterns))
        if size > max_bytes:
            raise InvalidSpec(f"hf-repo: {size} bytes is more than the limit of {max_bytes}", field="hf-repo")
        huggingface_hub.snapshot_download(
            repository, revision=info.sha or revision, local_dir=out, allow_patterns=patterns, max_workers=2
        )
    except HFValidationError as error:
        raise InvalidSpec(f"hf-repo: {error}", field="hf-repo") from error
    except HfHubHTTPError as error:
        raise _hub_problem(error, repository, revision) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        # The library reads answers without checking them, so a server that is no hub shows as any of these.
        raise UpstreamFault(f"{repository}: download failed: {type(error).__name__}: {error}") from error
    return out


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _hub_problem(error: Any, repository: str, revision: str) -> InvalidSpec | UpstreamFault:
    status = error.response.status_code if error.response is not None else 0
    if status == 404:
        return InvalidSpec(
            f"hf-repo: {repository} at revision {revision} was not found; check the name and the revision",
            field="hf-repo",
        )
    if status in {401, 403}:
        return InvalidSpec(
            f"hf-repo: access to {repository} was refused ({status}); give a token with access", field="hf-repo"
        )
    return UpstreamFault(f"{repository}: the hub answered {status}")
