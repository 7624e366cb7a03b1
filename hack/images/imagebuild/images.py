"""What each image is made of, its build context, and the key of its content."""

from __future__ import annotations

import hashlib
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
IMAGES = CHECKOUT / "images"
APPLICATIONS = ("engine", "operator", "router")
# The wheel's own bookkeeping: it changes with every file of other planes and with the README.
BOOKKEEPING = ("RECORD", "METADATA", "WHEEL")


@dataclass(frozen=True)
class Recipe:
    """An image to build: its Dockerfile, and its context as a mapping of path in the context to file."""

    name: str
    dockerfile: Path
    context: dict[str, Path]
    arguments: dict[str, str]
    key: str

    def reference(self, registry: str = "forebay.dev") -> str:
        """The image's reference; the tag is the content key, so new content never hides behind an old name."""
        return f"{registry}/{self.name}:{self.key}"


def application_recipe(name: str, wheel: Path, base: str, pip_options: str | None) -> Recipe:
    """The recipe of an image of `APPLICATIONS`. `base` must change when the base's content does."""
    dockerfile = IMAGES / f"Dockerfile.{name}"
    text = dockerfile.read_text(encoding="utf-8")
    context = {f"locks/{name}.txt": CHECKOUT / "locks" / f"{name}.txt", f"dist/{wheel.name}": wheel}
    if "images/release.json" in text:
        context["images/release.json"] = IMAGES / "release.json"
    arguments = {"BASE": base}
    if pip_options is not None:
        arguments["PIP_OPTIONS"] = pip_options
    digest = hashlib.sha256(repr((text, sorted(arguments.items()))).encode())
    for target, source in sorted(context.items()):
        if source != wheel:
            digest.update(target.encode() + source.read_bytes())
    digest.update(_wheel_digest(wheel, _planes(text)))
    return Recipe(name, dockerfile, context, arguments, digest.hexdigest()[:12])


def model_recipe(model: Path) -> Recipe:
    """The recipe of an image that holds one model file, named after the folder the file is in."""
    dockerfile = IMAGES / "Dockerfile.model"
    digest = hashlib.sha256(dockerfile.read_bytes() + model.name.encode())
    with model.open("rb") as handle:
        digest.update(hashlib.file_digest(handle, "sha256").digest())
    return Recipe(model.parent.name.lower(), dockerfile, {model.name: model}, {}, digest.hexdigest()[:12])


def fill_context(recipe: Recipe, folder: Path) -> None:
    """Puts the recipe's files into `folder`; large ones as links where the file system allows it."""
    for target, source in recipe.context.items():
        destination = folder / target
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            destination.hardlink_to(source)
        except OSError:
            shutil.copy2(source, destination)


def _planes(dockerfile: str) -> tuple[str, ...]:
    """The packages of the wheel that the Dockerfile keeps."""
    match = re.search(r'^ARG PLANES="([^"]*)"$', dockerfile, re.MULTILINE)
    if match is None:
        raise ValueError("the Dockerfile does not say which planes of the wheel it keeps")
    return tuple(match.group(1).split())


def _wheel_digest(wheel: Path, planes: tuple[str, ...]) -> bytes:
    """A digest over what the image keeps of the wheel: a change elsewhere gives no new image."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            top, _, rest = name.partition("/")
            kept = rest.partition("/")[0] in planes if top == "forebay" else not name.endswith(BOOKKEEPING)
            if kept:
                digest.update(name.encode() + archive.read(name))
    return digest.digest()
