"""`make cluster-up`: starts the cluster of this checkout, or nothing when it is up."""

from __future__ import annotations

import sys

from localcluster import lifecycle, requirements, toolchain
from localcluster.layout import current_layout
from localcluster.stages import stage


def main() -> None:
    """Builds the tools when they are missing, starts the cluster and says how to use it."""
    requirements.ensure()
    toolchain.build_missing()
    layout = current_layout()
    try:
        with stage("cluster up"):
            lifecycle.up(layout)
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"cluster in {layout.state}; try: hack/cluster/shell kubectl get nodes")


if __name__ == "__main__":
    main()
