"""Builds Forebay's images once per content, with buildah here and with docker elsewhere.

The Dockerfiles in `images/` are ordinary; this package makes their build context, finds what changed and
keeps the result as OCI archives in the user's cache, named by a key of everything that went in. Used by
`hack/images/build.py` only. Standard library only.
"""
