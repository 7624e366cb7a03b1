"""The cluster tool's pure parts: address blocks, and the pause image's archive."""

import ipaddress
from pathlib import Path

import pytest

from localcluster.layout import BLOCKS, Layout, choose_block
from localcluster.ociarchive import PAUSE_IMAGE, read_images, write_pause_image


def network(block: str) -> ipaddress.IPv4Network:
    """The range of a block."""
    return ipaddress.IPv4Network(f"{block}.0.0/16")


def test_two_state_folders_share_no_name_on_the_machine() -> None:
    one, two = Layout(Path("/srv/a/.cache/cluster")), Layout(Path("/srv/b/.cache/cluster"))
    assert {one.cgroup, one.link}.isdisjoint({two.cgroup, two.link})
    assert len(one.link) <= 15


@pytest.mark.parametrize("identity", ["00000000", "0000007f", "deadbeef"])
def test_a_chosen_block_never_overlaps_a_range_in_use(identity: str) -> None:
    taken: list[ipaddress.IPv4Network] = []
    for _ in BLOCKS:
        chosen = network(choose_block(identity, taken))
        assert not any(chosen.overlaps(other) for other in taken)
        taken.append(chosen)
    with pytest.raises(RuntimeError, match="no free"):
        choose_block(identity, taken)


def test_a_wide_route_takes_every_block_in_it() -> None:
    half = ipaddress.IPv4Network("10.128.0.0/9")
    assert not network(choose_block("000000ff", [half])).overlaps(half)


def test_the_pause_image_is_the_same_bytes_each_time_and_carries_its_name(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF program")
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    write_pause_image(program, first)
    write_pause_image(program, second)
    assert first.read_bytes() == second.read_bytes()
    (image,) = read_images(first)
    assert image.reference == PAUSE_IMAGE


def test_another_program_gives_another_digest(tmp_path: Path) -> None:
    digests = set()
    for content in (b"one", b"two"):
        program = tmp_path / "pause"
        program.write_bytes(content)
        write_pause_image(program, tmp_path / "image.tar")
        digests.add(read_images(tmp_path / "image.tar")[0].digest)
    assert len(digests) == 2


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "not-an-image.tar"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no OCI image archive"):
        read_images(path)
