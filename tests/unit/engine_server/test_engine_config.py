"""Configuration: layers, sources, suggestions, ranges, and sizes fitted to a machine."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.contract.errors import InvalidSpec
from forebay.engine.cache_plan import PROCESS_BYTES, CacheGroup, ModelFacts
from forebay.engine.cgroup import Machine
from forebay.engine.config import Layer, file_layer, flag_layer, merge, release_layer
from forebay.engine.keys import KEYS, KEYS_BY_NAME
from forebay.engine.resolve import Resolved, resolve

MACHINE = Machine(
    memory_bytes=4 << 30, memory_reason="cgroup memory limit", cpus=3, cpus_reason="cgroup CPU quota of 3"
)
PAGE_BYTES = 1 << 18
MODEL = ModelFacts("tiny", 2048, 1 << 28, (CacheGroup("full", 0, PAGE_BYTES),))
WINDOWED = ModelFacts("tiny", 8192, 1 << 28, (CacheGroup("full", 0, 1 << 16), CacheGroup("sliding", 512, 1 << 18)))


def resolved(machine: Machine = MACHINE, model: ModelFacts = MODEL, **values: Any) -> Resolved:
    """The configuration that runs for these values, everything else by default."""
    config, settings = merge([Layer("config file", "a test", values)])
    return resolve(config, settings, model, machine)


def test_flags_win_over_the_file_and_the_file_over_the_release(tmp_path: Path) -> None:
    config_file, release_file = tmp_path / "engine.json", tmp_path / "release.json"
    config_file.write_text(json.dumps({"max_running": 5, "max_waiting": 6}))
    release_file.write_text(json.dumps({"version": "9", "defaults": {"cpu": {"max_waiting": 7, "max_n": 2}}}))
    config, settings = merge(
        [flag_layer({"max_running": "4"}), file_layer(config_file), release_layer(release_file, "cpu")]
    )
    assert (config.max_running, config.max_waiting, config.max_n, config.max_stop) == (4, 6, 2, 4)
    assert [settings[name].source for name in ("max_running", "max_waiting", "max_n", "max_stop")] == [
        "flag",
        "config file",
        "release",
        "built-in",
    ]
    assert "release 9" in settings["max_n"].reason


def test_a_release_file_that_is_absent_changes_nothing(tmp_path: Path) -> None:
    assert release_layer(tmp_path / "none.json", "cpu").values == {}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_runing": 4}, ("max_runing", "did you mean 'max_running'")),
        ({"max_running": 0}, ("max_running", "from 1 to 1024")),
        ({"max_running": "8"}, ("max_running", "an integer")),
        ({"max_running": 1.5}, ("max_running", "an integer")),
        ({"max_running": True}, ("max_running", "an integer")),
        ({"max_seconds": float("nan")}, ("max_seconds", "a number")),
        ({"max_seconds": 1e300}, ("max_seconds", "a number")),
        ({"dtype": "bf61"}, ("dtype", "did you mean 'bf16'")),
        ({"prefix_reuse": "yes"}, ("prefix_reuse", "true or false")),
        ({"served_names": "one"}, ("served_names", "a list of strings")),
        ({"served_names": ["a", ""]}, ("served_names", "a list of strings")),
        ({"model": 5}, ("model", "a string")),
        ({"model": "a\0b"}, ("model", "a string")),
        ({"port": 70_000}, ("port", "65535")),
    ],
)
def test_a_bad_value_is_refused_by_key_with_what_is_allowed(values: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        merge([Layer("config file", "a test", values)])
    assert refusal.value.field == next(iter(values))
    for word in ("config file", *words):
        assert word in refusal.value.message


@given(st.sampled_from(KEYS), st.text(max_size=12))
def test_any_flag_text_gives_a_value_of_the_keys_type_or_names_the_key(key: Any, text: str) -> None:
    try:
        config, _ = merge([flag_layer({key.name: text})])
    except InvalidSpec as refusal:
        message = refusal.message
        assert key.name in message
        return
    types = {"integer": int, "number": float, "string": str, "boolean": bool, "list": tuple}
    assert type(getattr(config, key.name)) is types[key.kind]


@pytest.mark.parametrize("content", ["[]", "{", "nothing", "[" * 100_000])
def test_a_config_file_that_is_not_an_object_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "engine.json"
    path.write_text(content)
    with pytest.raises(InvalidSpec, match=r"engine\.json"):
        file_layer(path)


def test_built_in_defaults_pass_their_own_checks() -> None:
    merge([Layer("release", "a test", {key.name: key.default for key in KEYS})])
    assert len(KEYS_BY_NAME) == len(KEYS)


def test_threads_and_cache_come_from_the_limits_of_the_cgroup() -> None:
    found = resolved()
    assert (found.config.threads, found.settings["threads"].reason) == (3, "cgroup CPU quota of 3")
    free = MACHINE.memory_bytes - MODEL.weight_bytes - PROCESS_BYTES
    assert found.config.kv_cache_bytes <= free / 4
    assert found.config.kv_cache_bytes == found.pages[0] * PAGE_BYTES
    assert "pages" in found.settings["kv_cache_bytes"].reason


def test_a_cache_that_does_not_fit_the_memory_limit_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidSpec, match="cgroup memory limit") as refusal:
        resolved(kv_cache_bytes=4 << 30)
    assert refusal.value.field == "kv_cache_bytes"
    assert str(MODEL.weight_bytes) in refusal.value.message


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="does not fit") as refusal:
        resolved(machine=Machine(512 << 20, "cgroup memory limit", 1, ""))
    assert refusal.value.field == "model"


def test_lengths_follow_the_smaller_of_model_and_cache() -> None:
    assert resolved().max_sequence_tokens == MODEL.max_positions
    small = resolved(kv_cache_bytes=4 * PAGE_BYTES)
    assert (small.pages, small.max_sequence_tokens) == ((4,), 64)
    assert (small.config.max_prompt_tokens, small.config.max_tokens, small.config.default_max_tokens) == (63, 63, 63)
    assert "KV cache holds" in small.settings["max_prompt_tokens"].reason


@given(st.integers(12 << 20, 2 << 30), st.sampled_from([0.0, 0.1, 0.5, 0.9]), st.sampled_from([64, 512]))
def test_every_layer_group_holds_the_longest_sequence_and_all_fits_the_bytes(
    kv_cache_bytes: int, share: float, chunk: int
) -> None:
    try:
        found = resolved(model=WINDOWED, kv_cache_bytes=kv_cache_bytes, kv_window_share=share, max_batch_tokens=chunk)
    except InvalidSpec as refusal:
        is_too_small = kv_cache_bytes < (((512 + chunk) // 16 + 3) << 18) + (2 << 16)
        assert (refusal.field, is_too_small) == ("kv_cache_bytes", True)  # noqa: PT017 - a refusal is one of two ends
        return
    full, sliding = found.pages
    held = (full << 16) + (sliding << 18)
    assert held <= kv_cache_bytes
    assert held == found.config.kv_cache_bytes
    assert sliding * 16 >= 512 + chunk
    assert found.max_sequence_tokens == min(8192, full * 16)


def test_a_request_of_middle_length_fills_both_groups_alike() -> None:
    found = resolved(model=WINDOWED, kv_cache_bytes=1 << 30)
    full, sliding = found.pages
    assert full / (4096 / 16) == pytest.approx(sliding / ((512 + 512) / 16), rel=0.1)
    assert "4096 tokens" in found.settings["kv_window_share"].reason


@pytest.mark.parametrize(
    "values", [{"max_prompt_tokens": 5000}, {"max_tokens": 5000}, {"kv_cache_bytes": 1}, {"max_batch_tokens": 16}]
)
def test_a_number_that_cannot_hold_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        resolved(**values)
    assert refusal.value.field == next(iter(values))


def test_the_digest_changes_with_what_changes_answers_and_not_with_the_port() -> None:
    assert resolved().digest == resolved(port=9000, log_level="debug").digest
    assert resolved().digest != resolved(max_running=5).digest
    assert json.loads(json.dumps(resolved().to_json()))["digest"] == resolved().digest
