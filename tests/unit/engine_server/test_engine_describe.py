"""The printed EngineRelease is valid YAML and a valid resource, and its defaults are a valid configuration."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from forebay.api.enginerelease import EngineRelease
from forebay.engine.config import Layer, merge
from forebay.engine.describe import engine_release, to_yaml
from forebay.engine.keys import KEYS

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)
)
names = st.sampled_from(["a", "spec", "key_1", "configSchema"])
documents = st.dictionaries(
    names,
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
    ),
    max_size=4,
)


@given(documents)
def test_yaml_reads_back_as_the_document(document: dict[str, Any]) -> None:
    if document:
        assert yaml.safe_load(to_yaml(document)) == json.loads(json.dumps(document))


def test_the_command_prints_a_resource_that_the_api_accepts(tmp_path: Path) -> None:
    release_file = tmp_path / "release.json"
    release_file.write_text(json.dumps({"version": "0.1.0", "defaults": {"cpu": {"max_running": 3}}}))
    command = [
        sys.executable,
        "-m",
        "forebay.engine",
        "describe",
        "--image",
        "registry/engine:1",
        "--name",
        "forebay-1",
    ]
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, env={"FOREBAY_RELEASE_FILE": str(release_file)}
    ).stdout
    release = EngineRelease.model_validate(yaml.safe_load(printed))
    assert release.spec.image == "registry/engine:1"
    schema = release.spec.config_schema
    assert schema is not None
    assert [entry.key for entry in schema] == [key.name for key in KEYS]
    document = yaml.safe_load(printed)
    values = document["spec"]["defaults"][0]["values"]
    assert values["max_running"] == 3
    merge([Layer("release", "a test", values)])


def test_an_unknown_flag_is_one_line_with_a_suggestion() -> None:
    command = [sys.executable, "-m", "forebay.engine", "serve", "--max-runing", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "did you mean '--max-running'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_same_build_prints_the_same_bytes() -> None:
    layers = {"cpu": Layer("release", "", {})}
    assert to_yaml(engine_release("a", "b", layers)) == to_yaml(engine_release("a", "b", layers))
