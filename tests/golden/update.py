"""Rewrites every expected file, those of the charts too where Helm is there; the review of the diff is the check.

Called by `make golden`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from chart_render import EXPECTED, VARIANTS, find_helm, render_text
from golden_cases import case_names, dump, expected_path, render_case


def main() -> int:
    """Render all cases; prints the ones that changed."""
    for name in case_names():
        path, text = expected_path(name), dump(render_case(name))
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    helm = find_helm()
    if helm is None:
        print("charts are left as they are: no helm; run make cluster-tools")
        return 0
    for name, options in VARIANTS.items():
        path, text = EXPECTED / f"{name}.yaml", render_text(helm, *options)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
