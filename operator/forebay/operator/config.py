"""Operator settings, read once from the environment into a frozen value.

This is the only module of the operator that reads environment variables. The chart sets them; a bad value stops the
process at start with the name of the variable.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from forebay.contract.errors import InvalidSpec
from forebay.contract.names import PORT_OPERATOR_HEALTH, PORT_OPERATOR_METRICS

PREFIX = "FOREBAY_"
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Everything the operator process is told from outside."""

    router_image: str
    """Image of the router pods."""
    namespace: str = "forebay-system"
    """The operator's own namespace: its Lease lives there and routers admit reads from it."""
    identity: str = ""
    """Name of this process in the Lease; the pod's name in a cluster, made up at start when empty."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty means all."""
    workers: int = 4
    """Passes that may run at the same time, each for another key."""
    resync_s: float = 300.0
    """Period of the full look at every resource, which repairs what a lost watch event would hide."""
    lease_name: str = "forebay-operator"
    lease_duration_s: float = 30.0
    lease_renew_s: float = 10.0
    health_port: int = PORT_OPERATOR_HEALTH
    metrics_port: int = PORT_OPERATOR_METRICS
    log_level: str = "INFO"
    hf_endpoint: str | None = None
    """Address of the Hugging Face hub that model downloads use; None is the client's default."""
    metrics_namespace: str | None = None
    """Namespace whose pods may scrape engines and routers; None admits nobody."""


def read_config(environ: Mapping[str, str]) -> OperatorConfig:
    """Settings from environment variables with prefix `FOREBAY_`; raises `InvalidSpec` naming the variable."""
    defaults = OperatorConfig(router_image="")
    config = OperatorConfig(
        router_image=_text(environ, "ROUTER_IMAGE", ""),
        namespace=_text(environ, "NAMESPACE", defaults.namespace),
        identity=_text(environ, "IDENTITY", defaults.identity),
        watch_namespaces=_names(environ, "WATCH_NAMESPACES"),
        workers=_number(environ, "WORKERS", defaults.workers, 1, 64, int),
        resync_s=_number(environ, "RESYNC_S", defaults.resync_s, 5.0, 86400.0, float),
        lease_name=_text(environ, "LEASE_NAME", defaults.lease_name),
        lease_duration_s=_number(environ, "LEASE_DURATION_S", defaults.lease_duration_s, 3.0, 600.0, float),
        lease_renew_s=_number(environ, "LEASE_RENEW_S", defaults.lease_renew_s, 1.0, 300.0, float),
        health_port=_number(environ, "HEALTH_PORT", defaults.health_port, 0, 65535, int),
        metrics_port=_number(environ, "METRICS_PORT", defaults.metrics_port, 0, 65535, int),
        log_level=_text(environ, "LOG_LEVEL", defaults.log_level).upper(),
        hf_endpoint=_text(environ, "HF_ENDPOINT", "") or None,
        metrics_namespace=_text(environ, "METRICS_NAMESPACE", "") or None,
    )
    if not config.router_image:
        raise InvalidSpec("set it to the image of the router pods", field=f"{PREFIX}ROUTER_IMAGE")
    if config.lease_renew_s * 2 > config.lease_duration_s:
        raise InvalidSpec("must be at most half of the lease's duration", field=f"{PREFIX}LEASE_RENEW_S")
    if config.log_level not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise InvalidSpec("must be DEBUG, INFO, WARNING or ERROR", field=f"{PREFIX}LOG_LEVEL")
    return config


def config_from_environment() -> OperatorConfig:
    """`read_config` of this process's environment."""
    return read_config(os.environ)


def _text(environ: Mapping[str, str], name: str, default: str) -> str:
    return environ.get(PREFIX + name, "").strip() or default


def _names(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = environ.get(PREFIX + name, "")
    return tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))


def _number(environ: Mapping[str, str], name: str, default: N, low: N, high: N, parse: Callable[[str], N]) -> N:
    text = environ.get(PREFIX + name, "").strip()
    if not text:
        return default
    try:
        value = parse(text)
    except ValueError as error:
        raise InvalidSpec(f"{text!r} is not a number", field=PREFIX + name) from error
    if not low <= value <= high:
        raise InvalidSpec(f"{text} is outside {low} to {high}", field=PREFIX + name)
    return value
