"""What `hack/cluster/shell` needs: an environment file and a folder with kubectl, helm and ctr."""

from __future__ import annotations

import shlex

from localcluster.layout import Layout
from localcluster.toolchain import program_folder


def write_shell_files(layout: Layout) -> None:
    """Writes `env` and fills `bin`. The environment file is plain sh, for `.`."""
    layout.programs.mkdir(exist_ok=True)
    for module, program in (("kubernetes", "kubectl"), ("helm", "helm")):
        link = layout.programs / program
        link.unlink(missing_ok=True)
        link.symlink_to(program_folder(module) / program)
    # Streams of `ctr` pass through files that only the cluster's mount namespace has.
    ctr = program_folder("containerd") / "ctr"
    holder = layout.pid_file("holder")
    script = f"""#!/bin/sh
read -r pid _ < {shlex.quote(str(holder))} || exit 1
exec nsenter --mount="/proc/$pid/ns/mnt" -- {shlex.quote(str(ctr))} "$@"
"""
    wrapper = layout.programs / "ctr"
    wrapper.write_text(script, encoding="utf-8")
    wrapper.chmod(0o755)
    variables = {
        "FOREBAY_CLUSTER_STATE": str(layout.state),
        "FOREBAY_CLUSTER_HOST": layout.addresses.host,
        "KUBECONFIG": str(layout.admin_kubeconfig),
        "KUBECACHEDIR": str(layout.state / "kubectl-cache"),
        "HELM_CACHE_HOME": str(layout.state / "helm" / "cache"),
        "HELM_CONFIG_HOME": str(layout.state / "helm" / "config"),
        "HELM_DATA_HOME": str(layout.state / "helm" / "data"),
        "CONTAINERD_ADDRESS": str(layout.containerd_socket),
        "CONTAINERD_NAMESPACE": "k8s.io",
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines.append(f'export PATH={shlex.quote(str(layout.programs))}:"$PATH"')
    (layout.state / "env").write_text("\n".join(lines) + "\n", encoding="utf-8")
