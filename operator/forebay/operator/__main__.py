"""Entry of the operator process: `python -m forebay.operator` or `forebay-operator`.

Configured by environment variables only (see `config.OperatorConfig`); in a cluster the chart sets them. Exit code 0
after SIGTERM, 1 when leadership was lost or something failed: the kubelet starts it again.
"""

import asyncio
import logging
import socket
import sys
import uuid
from dataclasses import replace

from forebay.contract.errors import ForebayError, InvalidSpec
from forebay.contract.termination import end_on_sigterm
from forebay.operator.config import config_from_environment


def main() -> int:
    """Run the operator; returns the exit code."""
    end_on_sigterm()
    # kopf and the Kubernetes client take most of the start, during which SIGTERM must already end the process.
    from forebay.operator.main import run  # noqa: PLC0415

    try:
        config = config_from_environment()
    except InvalidSpec as error:
        print(f"forebay-operator: {error.field}: {error.message}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # kopf reports every handled event at INFO.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    if not config.identity:
        config = replace(config, identity=f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    try:
        asyncio.run(run(config))
    except ForebayError as error:
        logging.getLogger(__name__).error("stopping: %s", error)  # noqa: TRY400 - the message says all
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
