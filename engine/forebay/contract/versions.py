"""Version numbers of the shapes that two processes of different releases may exchange."""

from typing import Final

VERSION: Final = "0.1.0"
"""Version of this source tree; the wheel, the images and the charts carry the same one."""

ROUTES_VERSION: Final = 1
"""Version of the routes document that the operator writes and the router reads."""

LOAD_REPORT_VERSION: Final = 1
"""Version of the load report that an engine serves and a router reads."""

RENDERER_VERSION: Final = 1
"""Version of the operator's rendering of a revision; pinned per revision so an upgrade restarts no pod."""
