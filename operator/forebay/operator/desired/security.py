"""Security contexts that the Pod Security Standard `restricted` accepts; every pod that we make uses them."""

from typing import Any, Final

USER_ID: Final = 65532
"""User and group of all our containers, the one that the images name."""


def pod_security() -> dict[str, Any]:
    """securityContext of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """securityContext of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
