"""The operator: watches Forebay's resources and turns them into engine and router pods.

`reconcile` decides in pure functions over a frozen snapshot; `observe` and `execute` do the reading and the writing;
`main` is the kopf edge.
"""
