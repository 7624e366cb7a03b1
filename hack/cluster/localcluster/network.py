"""The link between the machine and the cluster's network namespace.

One veth pair and one route: the machine reaches node, pod and service addresses, and the cluster
reaches the machine's end of the link. Every other network is unreachable from the namespace.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess

from localcluster.layout import Layout
from localcluster.processes import run_inside

UPLINK = "uplink"


def ranges_in_use() -> list[ipaddress.IPv4Network]:
    """Every IPv4 range that the machine has a route to, the default route left out."""
    output = subprocess.run(
        ["ip", "-json", "-4", "route", "show", "table", "all"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    destinations = [route["dst"] for route in json.loads(output) if route.get("type", "unicast") == "unicast"]
    return [ipaddress.IPv4Network(text, strict=False) for text in destinations if text != "default"]


def connect(layout: Layout, holder_pid: int) -> None:
    """Makes the link, its addresses and the machine's route into the namespace."""
    addresses = layout.addresses
    disconnect(layout)
    pair = f"ip link add {layout.link} type veth peer name {UPLINK} netns {holder_pid}"
    for command in (
        pair,
        f"ip address add {addresses.host}/30 dev {layout.link}",
        f"ip link set {layout.link} up",
    ):
        subprocess.run(command.split(), check=True)
    run_inside(layout, *f"ip address add {addresses.node}/30 dev {UPLINK}".split())
    run_inside(layout, *f"ip link set {UPLINK} up".split())
    # Without it a packet to another network is dropped in silence and its sender waits for a timeout.
    run_inside(layout, *["ip", "route", "add", "unreachable", "default"])
    route = f"ip route replace {addresses.whole} via {addresses.node} dev {layout.link}"
    subprocess.run(route.split(), check=True)


def disconnect(layout: Layout) -> None:
    """Deletes the link, and with it both addresses and the route. A missing link is fine."""
    # A dying namespace deletes its links by itself, maybe at this moment: only the outcome counts.
    subprocess.run(["ip", "link", "delete", layout.link], check=False, capture_output=True)
    left = subprocess.run(["ip", "link", "show", layout.link], check=False, capture_output=True).returncode == 0
    if left:
        raise RuntimeError(f"the network link {layout.link} cannot be deleted")
