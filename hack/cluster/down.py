"""`make cluster-down`: ends the cluster of this checkout and deletes everything it made."""

from __future__ import annotations

import sys

from localcluster import lifecycle, requirements
from localcluster.layout import current_layout
from localcluster.stages import stage


def main() -> None:
    """Works in any condition of the cluster; nothing to take down is fine."""
    requirements.ensure()
    try:
        with stage("cluster down"):
            lifecycle.down(current_layout())
    except (TimeoutError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
