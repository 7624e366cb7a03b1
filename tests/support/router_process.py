"""A router as a process of its own, fed by a static routes file."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.contract.wire import RouterReport, parse_router_report


@dataclass(frozen=True)
class StaticEndpoint:
    """One engine for the static routes file."""

    address: str
    revision: str = "0123456789"
    ready: bool = True
    terminating: bool = False


@dataclass
class RouterProcess:
    """A running router; `write` changes what it routes to, within a tenth of a second."""

    process: "subprocess.Popen[str]"
    port: int
    admin_port: int
    routes_file: Path
    models: Sequence[str]
    epoch: int = 1

    @property
    def url(self) -> str:
        """Base URL of the data port."""
        return f"http://127.0.0.1:{self.port}"

    def write(self, endpoints: Sequence[StaticEndpoint], weights: Mapping[str, int] | None = None) -> None:
        """Route to these endpoints from now on; the file is replaced in one step."""
        self.epoch += 1
        write_routes(self.routes_file, endpoints, self.models, self.epoch, weights)

    def admin(self, path: str, method: str = "GET") -> bytes:
        """The body of an admin path; raises on a status of 400 or more."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            return bytes(response.read())

    def report(self) -> RouterReport:
        """What the router says it can route to."""
        return parse_router_report(json.loads(self.admin("/v1/forebay/routes")))

    def metric(self, series: str) -> float:
        """The value of one series, given as it stands in the exposition text."""
        for line in self.admin("/metrics").decode().splitlines():
            name, _, number = line.rpartition(" ")
            if name == series:
                return float(number)
        raise AssertionError(f"no series {series}")

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)


def write_routes(
    path: Path,
    endpoints: Sequence[StaticEndpoint],
    models: Sequence[str],
    epoch: int,
    weights: Mapping[str, int] | None = None,
) -> None:
    """Replace the static routes file; without weights each revision weighs the same."""
    chosen = weights if weights is not None else {endpoint.revision: 1 for endpoint in endpoints}
    document: dict[str, Any] = {
        "routes": {
            "version": 1,
            "epoch": epoch,
            "models": list(models),
            "weights": [{"revision": revision, "weight": weight} for revision, weight in sorted(chosen.items())],
        },
        "endpoints": [
            {
                "address": endpoint.address,
                "revision": endpoint.revision,
                "ready": endpoint.ready,
                "terminating": endpoint.terminating,
            }
            for endpoint in endpoints
        ],
    }
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(document))
    temporary.replace(path)


@contextmanager
def router_process(
    folder: Path, endpoints: Sequence[StaticEndpoint], *flags: str, models: Sequence[str] = ("m",)
) -> Iterator[RouterProcess]:
    """Run a router on free ports until the block ends."""
    path = folder / "routes.json"
    write_routes(path, endpoints, models, 1)
    command = [sys.executable, "-m", "forebay.router", "--static-routes", str(path), "--host", "127.0.0.1"]
    command += ["--port", "0", "--admin-port", "0", "--log-level", "warning", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        listening = json.loads(process.stdout.readline())
        yield RouterProcess(process, listening["port"], listening["admin_port"], path, models)
    finally:
        process.kill()
        process.wait(10)
