"""The command that comes with the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hushflow as hf

from .conftest import ROOT, Command

INSTALLED = [[sys.executable, "-m", "hushflow"], [str(Path(sys.executable).parent / "hushflow")]]


@pytest.fixture(params=INSTALLED, ids=["module", "script"])
def installed(request: pytest.FixtureRequest) -> list[str]:
    if not Path(request.param[0]).exists():
        pytest.skip(f"{request.param[0]} is not installed beside this Python")
    return list(request.param)


def run(command: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [*command, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_output_agrees_with_the_command(installed: list[str], hushflow: Command) -> None:
    cases: list[list[object]] = [["--version"], ["calibrate", "--epsilon", 1, "--delta", 1e-6, "--json"], ["help", "run"]]
    for arguments in cases:
        done = run(installed, *arguments)
        assert (done.returncode, done.stdout) == (0, hushflow(*arguments))
    assert hf.__version__ == hushflow("--version").split()[1]


def test_it_publishes_and_reads(installed: list[str], tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert run(installed, "run", ROOT / "examples/flights.toml", "--state", state, "--json").returncode == 0
    assert run(installed, "verify", state).returncode == 0
    assert run(installed, "tail", state, "--format", "csv").stdout.startswith("epoch,")


def test_exit_statuses_agree_with_the_command(installed: list[str], tmp_path: Path) -> None:
    assert run(installed, "blub").returncode == 2
    assert run(installed, "run", tmp_path / "missing.toml").returncode == 2
    missing = run(installed, "tail", tmp_path)
    assert missing.returncode == 1 and missing.stderr.startswith("error: ")


def test_a_check_reports_what_the_command_reports(hushflow: Command, tmp_path: Path) -> None:
    flights = ROOT / "examples/flights.toml"
    report = hf.check(flights, state=tmp_path / "state")
    assert report == json.loads(hushflow("check", flights, "--state", tmp_path / "state", "--json"))
    assert report["problems"] == []
    text = flights.read_text().replace("data/", f"{ROOT}/examples/data/")
    late = tmp_path / "late.toml"
    late.write_text(text.replace("2013-01-01", "2033-01-01"))
    assert hf.check(late, rows=100)["problems"]
    late.write_text(text.replace("horizon", "horizont"))
    with pytest.raises(hf.PipelineError) as raised:
        hf.check(late)
    assert raised.value.file == str(late) and raised.value.line > 0
    late.write_text(text.replace("flights_jan2013", "missing"))
    with pytest.raises(hf.RunError, match="missing"):
        hf.check(late)


def test_the_import_leaves_numpy_for_later() -> None:
    code = (
        "import hushflow as hf, sys; assert 'numpy' not in sys.modules; "
        "assert set(hf.__all__) <= set(dir(hf)); [getattr(hf, name) for name in hf.__all__]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_errors() -> None:
    """Also for a type checker, which would otherwise find this comment useless."""
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        hf.nothing  # type: ignore[attr-defined]
