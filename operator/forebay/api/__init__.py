"""The custom resources of group forebay.dev as pydantic models: the one source of CRDs, CEL rules and field docs.

One file per kind; `rules.py` holds the rule objects, `schema.py` turns models into structural schemas and `crd.py`
writes the files. The package is data only: it never talks to a cluster. The operator parses every object it reads
with `shape.parse`; offline tools use the same models.
"""
