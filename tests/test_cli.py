"""The command line: what it prints, and how it refuses."""

import subprocess
import sys

import pytest

from dpp import doctor
from dpp.paper import notebooks, reproduce
from dpp.system.errors import UserError


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "dpp", *arguments], capture_output=True, text=True, timeout=300
    )


def test_doctor_finds_everything_required():
    done = command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line.split()[0] != "missing" for line in done.stdout.splitlines())
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {"torch", "operator", "disk"}


def test_doctor_reports_a_package_that_does_not_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    (check,) = doctor.examine(["ipywidgets"])
    assert check.status == doctor.MISSING
    assert "ipywidgets" in check.found and check.advice


def test_doctor_exits_with_1_when_something_required_is_missing(monkeypatch, capsys):
    from dpp import __main__ as command_line

    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(sys, "argv", ["dpp", "doctor", "python", "ipywidgets"])
    assert command_line.main() == 1
    assert "missing" in capsys.readouterr().out


def test_doctor_finds_a_data_set_under_dpp_data(monkeypatch, tmp_path):
    monkeypatch.setenv("DPP_DATA", str(tmp_path))
    assert doctor.examine(["CUB-200-2011"])[0].status == doctor.OPTIONAL
    (tmp_path / "CUB_200_2011").mkdir()
    (tmp_path / "CUB_200_2011" / "images.txt").touch()
    assert doctor.examine(["CUB-200-2011"])[0].status == doctor.OK


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--profile", "huge"],
            "there is no profile 'huge': choose one of smoke, mini, photo, paper",
        ),
        (
            ["--only", "99_nothing"],
            "there is no notebook '99_nothing': choose one of 00_start_here",
        ),
        (["--only", "_"], "more than one notebook '_'"),
        (["--only", "00", "--set", "depth=3"], "00_start_here has no parameter 'depth'"),
        (["--only", "00", "--set", "map_size=big"], "map_size must be int, like"),
    ],
)
def test_reproduce_refuses_in_one_line_and_runs_nothing(dpp, arguments, said):
    code, out, error = dpp("reproduce", *arguments)
    assert code == 2 and out == ""
    assert len(error.strip().splitlines()) == 1 and said in error


def test_doctor_refuses_an_unknown_check():
    with pytest.raises(UserError, match="there is no check 'moon'"):
        doctor.examine(["moon"])


@pytest.mark.parametrize("name", ["00", "start_here", "00_start_here", "00_start_here.ipynb"])
def test_notebook_is_found_by(name):
    assert [path.name for path in notebooks.find([name])] == ["00_start_here.ipynb"]


def test_papermill_runs_the_first_notebook_with_another_parameter(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    assert reproduce.reproduce("smoke", ["00"], {"map_size": "11"})
    text = (tmp_path / "smoke" / "notebooks" / "00_start_here.ipynb").read_text()
    assert "map_size = 11" in text


def test_reproduce_reports_a_notebook_that_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPP_RESULTS", str(tmp_path))
    assert not reproduce.reproduce("smoke", ["00"], {"map_size": "0"})
    assert "failed: " in capsys.readouterr().out


def test_reproduce_takes_the_profile_from_its_own_option():
    with pytest.raises(UserError, match="use --profile paper"):
        reproduce.reproduce("mini", ["01"], {"profile": "paper"})
