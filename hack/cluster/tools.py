"""`make cluster-tools`: builds the cluster's programs once and prints the folder of each."""

from __future__ import annotations

from localcluster import toolchain


def main() -> None:
    """Builds what is missing; a second call costs nothing."""
    toolchain.build_missing()
    for module in toolchain.MODULES:
        print(f"{module.name}\t{toolchain.program_folder(module.name)}")


if __name__ == "__main__":
    main()
