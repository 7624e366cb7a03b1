"""Settings from the environment."""

import pytest

from forebay.contract.errors import InvalidSpec
from forebay.operator.config import OperatorConfig, read_config

IMAGE = {"FOREBAY_ROUTER_IMAGE": "forebay/router:1"}


def test_only_the_router_image_is_required() -> None:
    assert read_config(IMAGE) == OperatorConfig(router_image="forebay/router:1")


def test_values_are_parsed_and_blank_ones_mean_the_default() -> None:
    config = read_config(
        IMAGE
        | {
            "FOREBAY_WATCH_NAMESPACES": "b, a,,b",
            "FOREBAY_WORKERS": "8",
            "FOREBAY_RESYNC_S": "60.5",
            "FOREBAY_NAMESPACE": " ",
            "FOREBAY_HF_ENDPOINT": "http://hub",
        }
    )
    assert config.watch_namespaces == ("a", "b")
    assert (config.workers, config.resync_s) == (8, 60.5)
    assert config.namespace == "forebay-system"
    assert config.hf_endpoint == "http://hub"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROUTER_IMAGE", ""),
        ("WORKERS", "many"),
        ("WORKERS", "0"),
        ("RESYNC_S", "1"),
        ("LEASE_RENEW_S", "20"),
        ("METRICS_PORT", "70000"),
        ("LOG_LEVEL", "LOUD"),
    ],
)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read_config(IMAGE | {f"FOREBAY_{name}": value})
    assert caught.value.field == f"FOREBAY_{name}"
