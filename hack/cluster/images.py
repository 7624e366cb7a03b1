"""`images.py import ARCHIVE...`: brings OCI archives into the running cluster, each content once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from localcluster import imagestore, lifecycle
from localcluster.layout import current_layout


def main() -> None:
    """Imports the archives; prints a line for each that was not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser("import", help="import OCI archives")
    importing.add_argument("archives", nargs="+", type=Path)
    commands.add_parser("list", help="print reference and digest of every image")
    arguments = parser.parse_args()
    layout = current_layout()
    if not lifecycle.is_up(layout):
        sys.exit("the cluster is not up: make cluster-up")
    if arguments.command == "import":
        imagestore.import_archives(layout, arguments.archives)
    else:
        for reference, digest in sorted(imagestore.stored_digests(layout).items()):
            print(f"{reference}\t{digest}")


if __name__ == "__main__":
    main()
