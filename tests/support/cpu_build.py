"""Executors of tiny random checkpoints for tests: the C library's and torch's, with the same sizes."""

from pathlib import Path

from executor_drive import ExecutorDrive
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.runner.build import build_executor
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import Executor, ExecutorSizes

PAGES = 64
PAGE_TOKENS = 16


def executor_of(path: Path, dtype: str, kernels: str, threads: int = 1, pages: int = PAGES) -> Executor:
    """The checkpoint at a resolved path; one thread: threads that wait for each other crawl on a busy machine."""
    config = read_config(path)
    compute = choose_compute(dtype, cpu_features(), kernels)
    sizes = ExecutorSizes((pages,) * len(config.layer_groups), PAGE_TOKENS, 8, 256, threads)
    return build_executor(path, config, compute, sizes)


def drive(executor: Executor, path: Path, pages: int = PAGES) -> ExecutorDrive:
    """An empty drive of an executor for the checkpoint at a resolved path."""
    windows = [group.window_tokens for group in read_config(path).layer_groups]
    return ExecutorDrive(executor, [pages] * len(windows), PAGE_TOKENS, windows)
