"""Chained hashes of token blocks: the names under which KV blocks are found again.

A block's digest covers every token from the start of the sequence to the block's end, the fingerprint of the model
and KV format, and the tenant's salt. Equal digests mean equal KV content; tenants never share a digest.
Used by the engine's prefix index; the same bytes on every machine and in every process.
"""

import hashlib
import struct
from collections.abc import Sequence


def root_digest(fingerprint: bytes, salt: str) -> bytes:
    """Parent of a sequence's first block. Both parts are length-prefixed, so they cannot run into each other."""
    salt_bytes = salt.encode()
    head = struct.pack("<II", len(fingerprint), len(salt_bytes))
    return hashlib.sha256(head + fingerprint + salt_bytes).digest()


def block_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Digest of the block that follows `parent` (32 bytes) and holds `tokens` (each below 2**32)."""
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}I", *tokens)).digest()
