"""The command: decides what is stale, builds it, keeps it in the cache, pushes it when asked to."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from imagebuild.base import base_reference
from imagebuild.builders import Builder, BuildError, find_builder
from imagebuild.images import APPLICATIONS, CHECKOUT, Recipe, application_recipe, fill_context, model_recipe
from imagebuild.wheel import build_wheel, torch_source
from localcluster.stages import stage
from localcluster.toolchain import user_cache
from models import SMOLLM2

KEPT_PER_NAME = 4
# What was built last for this checkout; read by the demo and the cluster tests.
RECORD = CHECKOUT / ".cache" / "images.json"


def parse_arguments() -> argparse.Namespace:
    """The command line; see `--help`."""
    parser = argparse.ArgumentParser(prog="build.py", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(APPLICATIONS)} or model; all four without a name")
    parser.add_argument("--model-file", type=Path, help="the model image's file (default: the small test model)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*APPLICATIONS, "model"}:
        parser.error(f"no such image: {', '.join(sorted(unknown))}")
    return arguments


def default_model() -> Path:
    """The small test model that `make setup` fetched."""
    path = CHECKOUT / ".cache" / "models" / SMOLLM2.name / SMOLLM2.file
    if not path.exists():
        raise BuildError(f"{path} is missing: run `make setup`, or name a file with --model-file")
    return path


def recipes(builder: Builder, names: list[str], model_file: Path | None, scratch: Path) -> dict[str, Recipe]:
    """The recipe of each wanted image, in the order of the names."""
    found: dict[str, Recipe] = {}
    applications = [name for name in names if name != "model"]
    if applications:
        base = base_reference(builder)
        with stage("wheel"):
            wheel = build_wheel(scratch)
        for name in applications:
            pip_options = torch_source(builder).pip_options if name == "engine" else None
            found[name] = application_recipe(name, wheel, base, pip_options)
    if "model" in names:
        found["model"] = model_recipe(model_file or default_model())
    return found


def archive_of(builder: Builder, name: str, recipe: Recipe, folder: Path) -> Path:
    """The archive with the image, built and saved first when the cache lacks it."""
    archive = folder / f"{recipe.name}-{recipe.key}.tar"
    if archive.exists():
        archive.touch()
        return archive
    mounts = torch_source(builder).mounts if name == "engine" else {}
    with stage(f"build {name} image"), tempfile.TemporaryDirectory(dir=folder) as context:
        fill_context(recipe, Path(context))
        builder.build(Path(context), recipe.dockerfile, recipe.reference(), recipe.arguments, mounts)
    with stage(f"save {name} image"):
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        builder.save(recipe.reference(), partial)
        partial.rename(archive)
    forget_old(builder, recipe, folder)
    return archive


def forget_old(builder: Builder, recipe: Recipe, folder: Path) -> None:
    """Deletes all but the newest archives of the image, and what the builder stored for them."""
    archives = sorted(folder.glob(f"{recipe.name}-*.tar"), key=lambda path: path.stat().st_mtime)
    for old in archives[:-KEPT_PER_NAME]:
        key = old.stem.removeprefix(f"{recipe.name}-")
        builder.forget(replace(recipe, key=key).reference())
        old.unlink()


def record(results: dict[str, dict[str, str]]) -> None:
    """Merges the results into the checkout's record, by a rename."""
    known: dict[str, dict[str, str]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    partial = RECORD.with_suffix(".partial")
    partial.write_text(json.dumps(known | results, indent=1), encoding="utf-8")
    partial.rename(RECORD)


def main() -> None:
    """Builds what was asked for and prints `name, reference, archive` of each image."""
    arguments = parse_arguments()
    folder = user_cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    registry = os.environ.get("REGISTRY", "")
    results: dict[str, dict[str, str]] = {}
    with (folder / "lock").open("w") as lock, tempfile.TemporaryDirectory() as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        builder = find_builder(user_cache() / "buildah")
        wanted = arguments.names or [*APPLICATIONS, "model"]
        for name, recipe in recipes(builder, wanted, arguments.model_file, Path(scratch)).items():
            archive = archive_of(builder, name, recipe, folder)
            reference = recipe.reference(registry) if registry else recipe.reference()
            if registry:
                with stage(f"push {reference}"):
                    builder.push(archive, reference)
            results[name] = {"reference": reference, "archive": str(archive)}
    record(results)
    if arguments.json:
        print(json.dumps(results, indent=1))
    else:
        for name, result in results.items():
            print(f"{name}\t{result['reference']}\t{result['archive']}")


if __name__ == "__main__":
    try:
        main()
    except BuildError as error:
        sys.exit(str(error))
