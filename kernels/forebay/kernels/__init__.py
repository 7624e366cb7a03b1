"""Forebay's compute kernels: one folder each, with a checked public function and a readable reference.

Kernels know tensors only: no engine types, no configuration. The functions here run on any CPU through torch; faster
variants join a folder as further files behind the same function.
"""
