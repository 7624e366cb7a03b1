"""OCI image archives: reads what an archive holds, and writes the one-file pause image.

An archive is a tar of an OCI image layout, as `buildah push oci-archive:` writes it. Bytes are
deterministic: the same program gives the same digest on every machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAUSE_IMAGE = "forebay.dev/pause:1"
NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


@dataclass(frozen=True)
class ArchivedImage:
    """The reference under which the image will be known, and the digest of its manifest."""

    reference: str
    digest: str


def read_images(archive: Path) -> tuple[ArchivedImage, ...]:
    """The images of an archive. Raises ValueError when it is no OCI archive or an image has no name."""
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile("index.json")
            index: dict[str, Any] = json.load(member) if member else {}
    except (KeyError, tarfile.TarError) as error:
        raise ValueError(f"{archive} is no OCI image archive") from error
    images = []
    for manifest in index.get("manifests", []):
        annotations = manifest.get("annotations", {})
        reference = next((annotations[name] for name in NAME_ANNOTATIONS if name in annotations), None)
        if reference is None:
            raise ValueError(f"{archive} holds an image without a name")
        images.append(ArchivedImage(reference, manifest["digest"]))
    return tuple(images)


def write_pause_image(program: Path, archive: Path) -> None:
    """Writes an archive whose image holds nothing but `program`, run as a user without rights."""
    layer = _tar({"pause": program.read_bytes()}, mode=0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    config_bytes = _json(config)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor(config_bytes, "application/vnd.oci.image.config.v1+json"),
            "layers": [_descriptor(layer, "application/vnd.oci.image.layer.v1.tar")],
        }
    )
    entry = _descriptor(manifest, "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": PAUSE_IMAGE, "io.containerd.image.name": PAUSE_IMAGE}
    files = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (layer, config_bytes, manifest)}
    files["index.json"] = _json({"schemaVersion": 2, "manifests": [entry]})
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    archive.write_bytes(_tar(files, mode=0o644))


def _tar(files: dict[str, bytes], *, mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _descriptor(content: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}
