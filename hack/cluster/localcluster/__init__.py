"""A real Kubernetes on a bare Linux machine, inside one network namespace.

Standard library only. The scripts beside this package (`tools.py`, `up.py`, `down.py`, `status.py`,
`images.py`, `shell`) are its only callers. Everything that a cluster owns (processes, mounts, links,
cgroups, files) can be found again from its state folder alone, so that `down` works after any crash.
"""
