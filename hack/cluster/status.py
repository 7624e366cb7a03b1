"""Tells which components of the cluster run; `--json` for programs. Exits 1 unless the cluster is up."""

from __future__ import annotations

import argparse
import json
import sys

from localcluster import lifecycle
from localcluster.layout import current_layout


def main() -> None:
    """Prints the status and ends with 0 only for a cluster that is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json: bool = parser.parse_args().json
    layout = current_layout()
    pids = lifecycle.living(layout)
    is_up = lifecycle.is_up(layout)
    if as_json:
        report: dict[str, object] = {"up": is_up, "state": str(layout.state), "components": pids}
        if pids:
            addresses = layout.addresses
            report |= {
                "kubeconfig": str(layout.admin_kubeconfig),
                "audit_log": str(layout.audit_log),
                "cgroup": layout.cgroup,
                "link": layout.link,
                "node_address": addresses.node,
                "host_address": addresses.host,
                "pod_range": addresses.pods,
                "service_range": addresses.services,
                "dns_address": addresses.dns_service,
            }
        print(json.dumps(report, indent=1))
    else:
        for name, pid in pids.items():
            print(f"{name:<24} {pid or 'not running'}")
        print("up" if is_up else "not up")
    sys.exit(0 if is_up else 1)


if __name__ == "__main__":
    main()
