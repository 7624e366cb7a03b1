"""Limits of control groups, read from files laid out as both kernel versions lay them out."""

from pathlib import Path

from forebay.engine.cgroup import read_machine


def write(root: Path, files: dict[str, str]) -> None:
    """Files below `root` with their content."""
    for name, content in {"proc/meminfo": "MemTotal:       8388608 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_version_2_takes_the_smallest_limit_of_all_ancestors(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kube/pod/box\n",
            "sys/fs/cgroup/kube/memory.max": "2147483648\n",
            "sys/fs/cgroup/kube/pod/memory.max": "1073741824\n",
            "sys/fs/cgroup/kube/pod/box/memory.max": "max\n",
            "sys/fs/cgroup/kube/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/kube/pod/box/cpu.max": "max 100000\n",
        },
    )
    machine = read_machine(tmp_path, affinity_cpus=8)
    assert (machine.memory_bytes, machine.memory_reason) == (1 << 30, "cgroup memory limit")
    assert (machine.cpus, machine.cpus_reason) == (2, "cgroup CPU quota of 1.5")


def test_version_1_reads_its_own_hierarchies(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/pod\n3:cpu,cpuacct:/pod\n0::/\n",
            "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "536870912\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
        },
    )
    machine = read_machine(tmp_path, affinity_cpus=4)
    assert (machine.memory_bytes, machine.cpus) == (512 << 20, 1)


def test_in_a_container_the_group_is_the_root_of_what_is_mounted(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": "1000000\n"})
    assert read_machine(tmp_path, affinity_cpus=2).memory_bytes == 1_000_000


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    machine = read_machine(tmp_path, affinity_cpus=6)
    assert (machine.memory_bytes, machine.memory_reason) == (8 << 30, "memory of the machine")
    assert (machine.cpus, machine.cpus_reason) == (6, "CPUs this process may run on")
