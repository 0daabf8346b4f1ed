"""What cannot fit is refused in one line, before anything is built; what can is not."""

import pytest
from tiny_data import write_folder

from dpp import runs
from dpp.paper import engines
from dpp.runs import making
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

TINY = {"weights": "none", "backbone": "slim_resnet50", "image_size": 32}


@pytest.mark.parametrize(
    "changes,options,said",
    [
        ({}, {"workers": 1000}, "workers=1000: 4,000 processes need about 240 GB"),
        ({"epochs": 2147483647}, {}, "epochs=2,147,483,647: at a second for each"),
        ({"kernel_size": 99, "per_class": 500}, {}, "prototypes of 9,801 parts with .* GB"),
        ({"kernel_size": 100}, {}, "kernel_size=100: .* 99 cells .* even one up to 4"),
        ({"kernel_size": 9}, {}, "kernel_size=9: .* 4 cells .* map has 4 x 4: .* odd .* 7"),
        ({"train_per_class": 2**31 - 1}, {}, "are 6,442,450,953 images: choose at most 1,000,000"),
        ({"batch_size": 10**9}, {}, "a batch of 1,000,000,000 images of 32 px needs at least"),
    ],
)
def test_what_cannot_fit_is_refused_by_an_estimate(changes, options, said, tmp_path, monkeypatch):
    def build(*given, **named):
        pytest.fail("it was not refused")

    monkeypatch.setattr(making, "trainer_of", build)  # nothing large is made, whatever happens
    monkeypatch.setattr(making, "method_of", lambda _: type("M", (), {"build": build}))
    with pytest.raises(UserError, match=said) as caught:
        runs.run(make_experiment("smoke", **(TINY | changes)), root=tmp_path, **options)
    assert len(str(caught.value).splitlines()) == 1
    assert not any(tmp_path.iterdir())


def test_more_jobs_than_fit_are_refused():
    with pytest.raises(UserError, match="jobs=1000: so many runs at a time need about 400 GB"):
        engines.choose_jobs(1000)


def test_usual_experiments_fit():
    for profile, classes in (("paper", 200), ("photo", 200), ("mini", 10)):
        experiment = make_experiment(profile)
        making.limits.check_epochs(experiment)
        making.limits.check_memory(experiment, 2048, classes)
        making.limits.check_reach(experiment, 4)
    making.limits.check_workers(2)


@pytest.mark.parametrize(
    "options,said", [({"workers": -1}, "workers=-1"), ({"device": "abacus"}, "no device 'abacus'")]
)
def test_bad_options_are_refused_also_where_the_run_exists(options, said, tmp_path, monkeypatch):
    experiment = make_experiment("smoke", **TINY)
    monkeypatch.setattr(making, "find", lambda experiment, root: runs.Run(experiment, root))
    monkeypatch.setattr(making, "refuse_other_weights", lambda run: None)
    assert runs.run(experiment, root=tmp_path)
    with pytest.raises(UserError, match=said):
        runs.run(experiment, root=tmp_path, **options)


def test_missing_data_is_named_and_not_the_weights():
    with pytest.raises(UserError, match="there is no data set 'nowhere'"):
        runs.run(make_experiment("mini", data="nowhere"))


def test_own_folder_with_base_weights_is_told_which_to_choose(tmp_path, monkeypatch):
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    with pytest.raises(UserError, match="base weights are for drawn data"):
        runs.run(make_experiment("mini", data=str(write_folder(tmp_path / "own"))))
