"""Which library a CPU gets, what is said when there is none, and when it is compiled again."""

from pathlib import Path

import pytest

from forebay.kernels import cpu
from forebay.kernels.cpu import build

AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni"})
AVX2 = frozenset({"avx2", "fma", "f16c", "bmi2"})


@pytest.mark.parametrize(
    ("flags", "variants"),
    [
        (AVX512 | AVX2, ("v4", "v3")),
        (AVX2 | {"avx512f"}, ("v3",)),
        (AVX512 - {"avx512_vnni"} | AVX2, ("v3",)),
        (AVX2 - {"f16c"}, ()),
        (frozenset(), ()),
    ],
)
def test_variants_follow_the_flags(flags: frozenset[str], variants: tuple[str, ...]) -> None:
    assert cpu.runnable_variants(flags) == variants


def test_flags_are_read_from_the_first_cpu(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: avx2 fma\n\nprocessor\t: 1\nflags\t\t: none\n", encoding="utf-8")
    assert cpu.cpu_flags(file) == {"avx2", "fma"}
    assert cpu.cpu_flags(tmp_path / "absent") == frozenset()


def test_there_is_a_library_wherever_it_can_be_built() -> None:
    loaded = cpu.load()
    if build.reason_against_building() is None and cpu.runnable_variants(cpu.cpu_flags()):
        assert isinstance(loaded, cpu.CpuLibrary), loaded
        assert loaded.describe().startswith(loaded.variant)
    else:
        assert isinstance(loaded, cpu.Unavailable)
        assert loaded.reason


def test_an_unknown_variant_is_refused_with_its_name() -> None:
    refused = cpu.load("v9")
    assert isinstance(refused, cpu.Unavailable)
    assert "v9" in refused.reason or "AVX" in refused.reason


def test_without_a_compiler_there_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.find_compiler() is None
    reason = build.build(tmp_path)
    assert reason is not None
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(build.reason_against_building() is not None, reason="no compiler for this platform")
def test_a_library_is_compiled_when_a_source_changed_and_only_then(tmp_path: Path) -> None:
    folder = tmp_path / "cpu"
    (folder / "common").mkdir(parents=True)
    source = folder / "common" / "one.c"
    source.write_text("int one(void) { return 1; }\n", encoding="utf-8")
    library = folder / build.library_name("v3")
    assert build.build(folder) is None
    first = library.stat().st_mtime_ns
    assert build.build(folder) is None
    assert library.stat().st_mtime_ns == first
    source.write_text("int one(void) { return 2; }\n", encoding="utf-8")
    assert build.build(folder) is None
    assert library.stat().st_mtime_ns != first
    source.write_text("int one(void) { return nothing; }\n", encoding="utf-8")
    problem = build.build(folder)
    assert problem is not None
    assert "nothing" in problem


def test_no_source_depends_on_the_building_cpu() -> None:
    assert "native" not in " ".join(flag for flags in build.VARIANT_FLAGS.values() for flag in flags)
    assert "-ffast-math" not in build.FLAGS
