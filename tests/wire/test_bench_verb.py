"""`forebay-engine bench` against a real engine."""

import json
import subprocess
import sys

import pytest

from engine_process import EngineProcess

pytestmark = pytest.mark.wire

FIGURES = ("first_token_s", "inter_token_s", "request_s")


def bench(engine: EngineProcess, *flags: str) -> "subprocess.CompletedProcess[str]":
    """One run of the command."""
    command = [sys.executable, "-m", "forebay.engine", "bench", "--url", engine.url, "--requests", "4", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_it_reports_rates_times_and_memory(engine: EngineProcess) -> None:
    done = bench(engine, "--concurrency", "2", "--prompt-tokens", "20", "--output-tokens", "6", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["requests"], report["failed"], report["output_tokens"]) == (4, 0, 24)
    assert report["output_tokens_per_s"] > 0
    assert all(0 < report[name]["p50"] <= report[name]["p95"] <= report[name]["p99"] for name in FIGURES)
    assert report["resident_bytes"] > 100e6


def test_refused_requests_are_failures_and_say_why(engine: EngineProcess) -> None:
    done = bench(engine, "--prompt-tokens", "20", "--output-tokens", "1000000")
    assert done.returncode == 1
    assert "4 requests, 4 failed" in done.stdout
    assert "problem: status 400" in done.stdout
