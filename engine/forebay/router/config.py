"""Settings of a router process, frozen, read once from the command line.

The only module that reads the environment: Kubernetes tells a pod where its API server is by two variables. Durations
are seconds, sizes bytes.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay.contract.errors import InvalidSpec
from forebay.contract.names import PORT_ROUTER, PORT_ROUTER_ADMIN

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a router process is told. Exactly one of `static_routes` and `apiserver` is set."""

    deployment: str
    namespace: str
    host: str
    port: int
    admin_port: int
    api_keys_dir: Path | None
    static_routes: Path | None
    apiserver: str | None
    token_file: Path | None
    ca_file: Path | None
    drain_s: float
    grace_s: float
    max_head_bytes: int
    max_body_bytes: int
    max_buffered_bytes: int
    max_connections: int
    max_streams_per_key: int
    header_timeout_s: float
    body_timeout_s: float
    idle_timeout_s: float
    connect_timeout_s: float
    first_byte_timeout_s: float
    response_timeout_s: float
    stall_timeout_s: float
    client_stall_timeout_s: float
    load_poll_s: float
    log_level: str


def parse(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """Read the command line; raises `InvalidSpec`, or exits as argparse does."""
    environ = os.environ if environ is None else environ
    options = _parser().parse_args(argv)
    apiserver = options.apiserver
    if options.static_routes is None and apiserver is None:
        host = environ.get("KUBERNETES_SERVICE_HOST")
        port = environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise InvalidSpec(
                "no API server: run in a pod, or pass --apiserver or --static-routes", field="--static-routes"
            )
        apiserver = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if options.static_routes is None and not (options.deployment and options.namespace):
        raise InvalidSpec("--deployment and --namespace are needed to find the engines", field="--deployment")
    values = dict(vars(options))
    values["apiserver"] = None if options.static_routes is not None else apiserver
    return Settings(**values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="forebay-router", description="OpenAI-compatible router of a ModelDeployment")
    add = parser.add_argument
    add("--deployment", default="", help="ModelDeployment whose engines are routed to")
    add("--namespace", default="", help="namespace of the ModelDeployment")
    add("--host", default="0.0.0.0", help="address of both ports")  # noqa: S104 (a server in a pod)
    add("--port", type=int, default=PORT_ROUTER, help="data port; 0 takes a free one")
    add("--admin-port", type=int, default=PORT_ROUTER_ADMIN, help="health, metrics and routes; 0 takes a free one")
    add("--api-keys-dir", type=Path, default=None, help="directory with one file per client, holding its API key")
    add("--static-routes", type=Path, default=None, help="JSON file with routes and endpoints, instead of Kubernetes")
    add("--apiserver", default=None, help="URL of the Kubernetes API server (default: from the pod's environment)")
    add("--token-file", type=Path, default=_ACCOUNT / "token", help="bearer token, read again for each request")
    add("--ca-file", type=Path, default=_ACCOUNT / "ca.crt", help="certificate authority of the API server")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    _add_limits(parser)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    seconds = {
        "drain": (5.0, "after SIGTERM, keep accepting this long while readiness is off"),
        "grace": (3600.0, "after that, wait at most this long for requests in flight; a pod ends sooner by its own"),
        "header-timeout": (15.0, "for a request head to arrive; then 408"),
        "body-timeout": (120.0, "for a request body to arrive; then 408"),
        "idle-timeout": (75.0, "for an idle client connection"),
        "connect-timeout": (2.0, "for a connection to an engine"),
        "first-byte-timeout": (120.0, "for the first body byte of a stream"),
        "response-timeout": (900.0, "for the first byte of an answer that is not a stream"),
        "stall-timeout": (60.0, "between bytes of an answer"),
        "client-stall-timeout": (120.0, "for a client that reads nothing"),
        "load-poll": (0.5, "between load polls of each engine"),
    }
    for name, (default, text) in seconds.items():
        destination = name.replace("-", "_") + "_s"
        add(f"--{name}-seconds", dest=destination, type=_positive, default=default, help=f"seconds {text}")
    sizes = {
        "max-head-bytes": (32768, "largest request head; then 431"),
        "max-body-bytes": (4 * 1024 * 1024, "largest request body; then 413"),
        "max-buffered-bytes": (256 * 1024 * 1024, "request bodies held at one time; then 503"),
        "max-connections": (8192, "client connections; then 503"),
        "max-streams-per-key": (256, "concurrent streams of one API key; then 429"),
    }
    for name, (number, text) in sizes.items():
        add(f"--{name}", type=_count, default=number, help=text)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number
