"""Command line of the engine: serve, describe, fetch, drain, bench, replay.

Flags of `serve` are the configuration keys; their texts are parsed by `config.py`, so that a mistake reads the same
from a flag as from a file. Errors of the user are one line on standard error and exit code 2.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from forebay.contract.errors import ForebayError, InvalidSpec
from forebay.contract.names import PORT_ENGINE
from forebay.contract.termination import end_on_sigterm
from forebay.engine.cgroup import read_machine
from forebay.engine.config import (
    Environment,
    file_layer,
    flag_layer,
    merge,
    read_environment,
    release_layer,
    suggestion,
)
from forebay.engine.describe import ARCHITECTURES, engine_release, to_yaml
from forebay.engine.drain import drain
from forebay.engine.fetch import DEFAULT_MAX_BYTES, FORMATS, check_http, fetch_http, fetch_hugging_face
from forebay.engine.keys import KEYS, KEYS_BY_NAME
from forebay.engine.replay import replay

EXIT_USAGE = 2
_ARCHITECTURE = "cpu"
_SPINS_BETWEEN_STEPS = "2000"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    end_on_sigterm()
    given = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    arguments, unknown = parser.parse_known_args(given)
    try:
        if unknown:
            raise _unknown_flag(unknown[0])
        return int(arguments.run(arguments))
    except ForebayError as error:
        print(f"forebay-engine: {error.message}", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="forebay-engine", description="LLM inference engine", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help="serve a model over HTTP", allow_abbrev=False)
    serving.set_defaults(run=_serve)
    serving.add_argument("--config", metavar="FILE", help="JSON file of configuration keys")
    for key in KEYS:
        serving.add_argument(key.flag, dest=key.name, metavar=key.kind.upper(), help=f"{key.description}")
    describing = commands.add_parser("describe", help="print the EngineRelease of this build", allow_abbrev=False)
    describing.set_defaults(run=_describe)
    describing.add_argument("--image", default="forebay/engine:dev", help="image reference to state")
    describing.add_argument("--name", default="forebay", help="name of the resource")
    fetching = commands.add_parser("fetch", help="download a model", allow_abbrev=False)
    fetching.set_defaults(run=_fetch)
    source = fetching.add_mutually_exclusive_group(required=True)
    source.add_argument("--url", help="file to download over HTTP; needs --sha256")
    source.add_argument("--hf-repo", help="Hugging Face repository; needs --hf-revision")
    fetching.add_argument("--sha256", help="hex digest of the file")
    fetching.add_argument("--hf-revision", help="commit, tag or branch")
    fetching.add_argument("--format", choices=FORMATS, default="auto", help="weights to take from the repository")
    fetching.add_argument("--out", required=True, type=Path, help="folder to write to")
    fetching.add_argument("--max-bytes", type=int, default=DEFAULT_MAX_BYTES, help="largest download")
    draining = commands.add_parser("drain", help="drain a running engine and wait", allow_abbrev=False)
    draining.set_defaults(run=_drain)
    draining.add_argument("--host", default="127.0.0.1")
    draining.add_argument("--port", type=int, default=PORT_ENGINE)
    draining.add_argument("--timeout-s", type=float, default=300.0)
    benching = commands.add_parser("bench", help="put load on a running engine and measure", allow_abbrev=False)
    benching.set_defaults(run=_bench)
    _bench_flags(benching)
    rating = commands.add_parser("quality", help="what a precision costs against fp32", allow_abbrev=False)
    rating.set_defaults(run=_quality)
    rating.add_argument("--model", required=True, help="path of the model, as for serve")
    rating.add_argument("--precisions", default="bf16,int8,int4", help="comma-separated precisions to rate")
    rating.add_argument("--kernels", default="auto", choices=KEYS_BY_NAME["kernels"].values)
    rating.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    rating.add_argument("--json", action="store_true", help="print JSON instead of a table")
    replaying = commands.add_parser("replay", help="repeat a recorded request and compare tokens", allow_abbrev=False)
    replaying.set_defaults(run=_replay)
    replaying.add_argument("record", type=Path, help="JSON file of a record, or of an answer that carries one")
    where = replaying.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="base URL of a running engine")
    where.add_argument("--model", type=Path, help="model to start an engine for, configured as in the record")
    replaying.add_argument("--api-key", default="", help="bearer token for --url")
    core = commands.add_parser("core", allow_abbrev=False)
    core.set_defaults(run=_core)
    core.add_argument("--descriptor", type=int, required=True)
    core.add_argument("--kernels", default="torch")
    core.add_argument("--log-level", default="info")
    return parser


def _bench_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, help="base URL of the engine, http://HOST:PORT")
    parser.add_argument("--model", default="", help="model name; empty takes the first that is served")
    parser.add_argument("--api-key-file", type=Path, help="file with the API key")
    parser.add_argument("--requests", type=int, default=32, help="requests to send")
    parser.add_argument("--concurrency", type=int, default=8, help="requests in flight")
    parser.add_argument("--prompt-tokens", type=int, default=155, help="random tokens of each prompt")
    parser.add_argument("--output-tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the prompts; a seed used before finds them in the cache"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _unknown_flag(text: str) -> InvalidSpec:
    name = text.partition("=")[0].lstrip("-").replace("-", "_")
    near = suggestion(name)
    for key in KEYS:
        near = near.replace(f"{key.name!r}", repr(key.flag))
    return InvalidSpec(f"unknown argument {text!r}{near}", field=name)


def _start_logging(level: str, process: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {process} %(name)s: %(message)s",
    )


def _serve(arguments: argparse.Namespace) -> int:
    # The server's imports take a quarter of a second, which the other commands need not pay.
    from forebay.engine.server.process import serve  # noqa: PLC0415
    from forebay.engine.server.setup import prepare  # noqa: PLC0415

    environment = read_environment()
    given = {name: text for name in KEYS_BY_NAME if (text := getattr(arguments, name)) is not None}
    layers = [flag_layer(given)]
    if arguments.config is not None:
        layers.append(file_layer(Path(arguments.config)))
    layers.append(release_layer(environment.release_file, _ARCHITECTURE))
    config, settings = merge(layers)
    _start_logging(config.log_level, "api")
    machine = read_machine(Path("/"), len(os.sched_getaffinity(0)))
    setup = prepare(config, settings, machine, environment)
    _print_settings(setup.resolved.to_json())
    return serve(setup)


def _print_settings(document: dict[str, object]) -> None:
    """The effective configuration, once, as one line of JSON on standard error."""
    print(json.dumps({"effective": document}, sort_keys=True), file=sys.stderr, flush=True)


def _describe(arguments: argparse.Namespace) -> int:
    environment: Environment = read_environment()
    layers = {name: release_layer(environment.release_file, name) for name in ARCHITECTURES}
    print(to_yaml(engine_release(arguments.name, arguments.image, layers)), end="")
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    if arguments.url is not None:
        if arguments.sha256 is None:
            raise InvalidSpec("sha256: is required with --url", field="sha256")
        source = check_http(arguments.url, arguments.sha256)
        path = fetch_http(source, arguments.out, arguments.max_bytes, time.sleep)
    else:
        if arguments.hf_revision is None:
            raise InvalidSpec("hf-revision: is required with --hf-repo", field="hf-revision")
        path = fetch_hugging_face(
            arguments.hf_repo, arguments.hf_revision, arguments.out, arguments.max_bytes, arguments.format
        )
    print(f"fetched {path}")
    return 0


def _drain(arguments: argparse.Namespace) -> int:
    return drain(arguments.host, arguments.port, arguments.timeout_s, print)


def _bench(arguments: argparse.Namespace) -> int:
    from forebay.engine.bench import Plan, bench, first_model, target_of  # noqa: PLC0415 - as in _serve

    key = arguments.api_key_file.read_text(encoding="utf-8").strip() if arguments.api_key_file else ""
    target = target_of(arguments.url, arguments.model, key)
    plan = Plan(
        requests=arguments.requests,
        concurrency=arguments.concurrency,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        seed=arguments.seed,
    )
    return bench(first_model(target), plan, print, as_json=arguments.json)


def _quality(arguments: argparse.Namespace) -> int:
    from forebay.engine.quality import document, qualities, table  # noqa: PLC0415 - as in _serve

    precisions = [name.strip() for name in arguments.precisions.split(",") if name.strip()]
    rows = list(qualities(arguments.model, precisions, arguments.kernels, arguments.threads))
    print(json.dumps(document(arguments.model, rows), indent=1) if arguments.json else table(rows))
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    return replay(arguments.record, arguments.url, arguments.model, arguments.api_key, print)


def _core(arguments: argparse.Namespace) -> int:
    from forebay.engine.core import run_core  # noqa: PLC0415 - as in _serve

    if arguments.kernels == "cpu":
        # One parallel region a step: threads that spin between steps take the CPU from planning and from the API
        # process. The OpenMP runtime reads this when torch loads it, which is later than here.
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS_BETWEEN_STEPS)
    _start_logging(arguments.log_level, "core")
    return run_core(arguments.descriptor)


if __name__ == "__main__":
    sys.exit(main())
