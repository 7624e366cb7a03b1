"""API keys from a directory of files, as a mounted Secret gives them: file name = client, content = key.

The directory is read again when it changes. A directory that cannot be read, or is empty, lets nobody in. Keys are
compared by digest, so the time a comparison takes says nothing about a key.
"""

import hashlib
import hmac
import logging
from pathlib import Path

LOG = logging.getLogger(__name__)
MAX_KEY_BYTES = 4096


class KeySource:
    """The current keys; `directory` None means that no key is needed."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._clients: dict[bytes, str] = {}
        self._seen: object = None
        self.reload()

    @property
    def open(self) -> bool:
        """Whether requests need no key."""
        return self._directory is None

    def client(self, authorization: bytes) -> str | None:
        """The client of an Authorization header's bearer key, or None."""
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest = hashlib.sha256(key.strip()).digest()
        found = None
        for known, client in self._clients.items():
            if hmac.compare_digest(known, digest):
                found = client
        return found

    def reload(self) -> None:
        """Read the directory if it changed since the last call."""
        if self._directory is None:
            return
        try:
            files = sorted(
                path for path in self._directory.iterdir() if not path.name.startswith("..") and path.is_file()
            )
            seen = [(path.name, path.stat().st_mtime_ns, path.stat().st_ino, path.stat().st_size) for path in files]
            if seen == self._seen:
                return
            clients = {path.name: path.read_bytes()[:MAX_KEY_BYTES].strip() for path in files}
        except OSError as error:
            if self._seen is not error.errno:
                LOG.warning("API keys cannot be read, nobody is let in: %s", error)
            self._seen = error.errno
            self._clients = {}
            return
        self._seen = seen
        self._clients = {hashlib.sha256(key).digest(): name for name, key in clients.items() if key}
        LOG.info("read the API keys of %d clients", len(self._clients))
