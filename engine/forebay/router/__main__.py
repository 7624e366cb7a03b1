"""`forebay-router` and `python -m forebay.router`: parse the command line and serve on uvloop."""

import asyncio
import json
import logging
import sys

from forebay.contract.errors import InvalidSpec
from forebay.contract.termination import end_on_sigterm
from forebay.router.config import parse


def announce(port: int, admin_port: int) -> None:
    """Tell whoever started the process where it listens, as one JSON line."""
    print(json.dumps({"event": "listening", "port": port, "admin_port": admin_port}), flush=True)


def main() -> None:
    """Run the router; exit code 2 means a bad command line."""
    end_on_sigterm()
    # These imports take most of the start, during which SIGTERM must already end the process.
    import uvloop  # noqa: PLC0415

    from forebay.router.process import serve  # noqa: PLC0415

    try:
        settings = parse(sys.argv[1:])
    except InvalidSpec as error:
        print(f"forebay-router: {error.field}: {error.message}", file=sys.stderr)
        raise SystemExit(2) from error
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, announce))


if __name__ == "__main__":
    main()
