"""`forebay`: plan, diff, status, approve, pause, resume, abort, retry."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from forebay.cli.kubectl import Cluster, CommandFailed, Kubectl
from forebay.cli.plan import lines, predict, read_files
from forebay.cli.show import deployment_lines, is_over, rollout_lines
from forebay.cli.verbs import last_rollout, say
from forebay.contract.versions import VERSION

VERBS = {
    "approve": "let a step pass its approval gate",
    "pause": "make the run wait where it is",
    "resume": "let a paused run go on",
    "abort": "take the run back; its revision is rejected",
    "retry": "allow a rejected revision again",
}
WATCH_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a refusal or error, 2 for a plan that would be held."""
    options = _parser().parse_args(argv)
    cluster = Kubectl(options.namespace, options.context)
    try:
        return _run(options, cluster)
    except CommandFailed as error:
        print(f"forebay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace, cluster: Cluster) -> int:
    match options.command:
        case "status":
            return _status(options, cluster)
        case "plan" | "diff":
            return _plan(options, cluster)
    verb = options.command
    print(say(cluster, verb, options.name, reason=options.reason, step=options.step, dry_run=options.dry_run))
    return 0


def _plan(options: argparse.Namespace, cluster: Cluster) -> int:
    documents = read_files(options.file)
    found = predict(documents, None if options.offline else cluster, datetime.now(UTC).date())
    if options.output:
        _print_document(found.to_json(), options.output)
    else:
        print("\n".join(lines(found, only_changes=options.command == "diff")))
    return 2 if found.blocked else 0


def _status(options: argparse.Namespace, cluster: Cluster) -> int:
    while True:
        names = (
            [options.name] if options.name else [item["metadata"]["name"] for item in cluster.list("modeldeployment")]
        )
        seen = [_look(cluster, name) for name in names]
        _print_status(seen, options)
        if not options.watch or all(is_over(item["rollout"]) for item in seen):
            return 0
        time.sleep(WATCH_S)


def _print_status(seen: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    if options.output:
        _print_document(seen[0] if options.name else list(seen), options.output)
        return
    if options.watch and sys.stdout.isatty():
        print("\033[H\033[2J", end="")
    print("\n\n".join("\n".join(_shown(item)) for item in seen) or "no ModelDeployment in this namespace")


def _look(cluster: Cluster, name: str) -> dict[str, Any]:
    deployment = cluster.get("modeldeployment", name)
    if deployment is None:
        raise CommandFailed(f"ModelDeployment {name} does not exist in this namespace")
    has_run = bool(((deployment.get("status") or {}).get("rolloutRef") or {}).get("name"))
    return {"deployment": deployment, "rollout": last_rollout(cluster, name) if has_run else None}


def _shown(item: dict[str, Any]) -> list[str]:
    rollout = rollout_lines(item["rollout"]) if item["rollout"] is not None else []
    return [*deployment_lines(item["deployment"]), *rollout]


def _print_document(document: Any, output: str) -> None:
    print(json.dumps(document, indent=2) if output == "json" else yaml.safe_dump(document, sort_keys=False).rstrip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="forebay", description="Rollouts of Forebay deployments.")
    parser.add_argument("--version", action="version", version=f"forebay {VERSION}")
    parser.add_argument("-n", "--namespace", help="namespace; the context's when absent")
    parser.add_argument("--context", help="kubeconfig context")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("plan", "what applying files would do"), ("diff", "configuration values that would change")):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "-f", "--file", type=Path, action="append", required=True, help="YAML file; may be repeated"
        )
        command.add_argument("--offline", action="store_true", help="use the files alone, ask no cluster")
        command.add_argument("-o", "--output", choices=("json", "yaml"))
    status = commands.add_parser("status", help="where deployments and their rollouts are")
    status.add_argument("name", nargs="?", help="a ModelDeployment; all of the namespace when absent")
    status.add_argument("-w", "--watch", action="store_true", help="follow until the rollout is over")
    status.add_argument("-o", "--output", choices=("json", "yaml"))
    for verb, text in VERBS.items():
        command = commands.add_parser(verb, help=text)
        command.add_argument("name", help="the ModelDeployment")
        command.add_argument("--reason", required=True, help="why; kept with the run")
        command.add_argument(
            "--dry-run", action="store_true", help="let the API server check the action, change nothing"
        )
        command.add_argument(
            "--step",
            help="the step that is approved; the present one when absent" if verb == "approve" else argparse.SUPPRESS,
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
