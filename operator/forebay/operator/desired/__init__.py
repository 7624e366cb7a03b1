"""Builders of desired objects: values in, manifests out. Total functions without I/O."""
