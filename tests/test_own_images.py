"""One's own images: rules by the folder's size, what `dpp train` says, and how it refuses."""

import shlex

import pytest
import torch
from PIL import Image
from tiny_data import write_folder

from dpp import data, runs
from dpp.analysis.collapse import run_duplicates
from dpp.data.folders import skipped_files
from dpp.report import own_folder
from dpp.runs import forecast, own_images
from dpp.runs.forecast import Forecast
from dpp.runs.trunk_cache import Missing
from dpp.system.errors import UserError
from dpp.training.experiments import make_experiment

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ("--weights", "none", "--backbone", "resnet18", "--image-size", "64", "--views", "2")


@pytest.fixture(autouse=True)
def roots(tmp_path, monkeypatch):
    """Data and runs of this test's own."""
    monkeypatch.setenv("DPP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DPP_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)


# Rules


def usual(**changes):
    return make_experiment("photo", data="some/folder", **changes)


def test_few_photographs_get_small_batches_more_epochs_and_fewer_prototypes():
    experiment, choices = own_images.choose("photo", [13] * 4, {})
    assert 52 // experiment.batch_size >= own_images.LEAST_BATCHES
    assert experiment.epochs * (52 // experiment.batch_size) >= own_images.LEAST_STEPS
    assert experiment.epochs % usual().epochs == 0
    assert experiment.per_class == 3 and experiment.last_layer == "converged"
    assert {c.name for c in choices} == {"batch_size", "epochs", "per_class", "last_layer"}


def test_many_photographs_get_the_profiles_own_values():
    experiment, _ = own_images.choose("photo", [40] * 200, {"data": "some/folder"})
    assert experiment == usual(last_layer="converged")


@pytest.mark.parametrize("classes", [2, 4, 20, 200])
@pytest.mark.parametrize("images", [1, 2, 5, 13, 40, 400])
def test_rules_hold_for_any_size(classes, images):
    experiment, _ = own_images.choose("photo", [images] * classes, {})
    total, profile = images * classes, usual()
    assert 1 <= experiment.batch_size <= min(profile.batch_size, total)
    assert 1 <= experiment.per_class <= min(profile.per_class, images)
    steps = experiment.epochs * (total // experiment.batch_size)
    assert steps >= own_images.LEAST_STEPS
    long = experiment.epochs > profile.epochs
    assert not long or steps < own_images.LEAST_STEPS + profile.epochs * (
        total // experiment.batch_size
    )
    assert experiment.project_after[-1] == experiment.epochs


def test_schedule_is_stretched_with_the_epochs():
    profile, factor = usual(), 5
    experiment, _ = own_images.choose("photo", [13] * 4, {"epochs": factor * profile.epochs})
    for name in own_images.STRETCHED:
        assert getattr(experiment, name) == factor * getattr(profile, name)
    assert experiment.project_after == tuple(factor * epoch for epoch in profile.project_after)


@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 7])
def test_few_given_epochs_fit_their_phases(epochs):
    experiment, _ = own_images.choose("photo", [13] * 4, {"epochs": epochs})
    assert experiment.epochs == epochs == experiment.project_after[-1]
    assert experiment.warm_epochs + experiment.second_warm_epochs <= epochs


def test_what_is_given_is_not_chosen():
    given = {"batch_size": 20, "epochs": 6, "per_class": 5, "last_layer": "passes"}
    experiment, choices = own_images.choose("photo", [13] * 4, given | {"warm_epochs": 3})
    assert choices == () and experiment.warm_epochs == 3
    assert {name: getattr(experiment, name) for name in given} == given


def test_given_schedule_is_kept_though_the_profiles_is_shorter():
    long = {"epochs": 60, "warm_epochs": 20, "project_after": (30, 60)}
    experiment, _ = own_images.choose("photo", [13] * 4, long)
    assert {name: getattr(experiment, name) for name in long} == long
    experiment, _ = own_images.choose("photo", [13] * 4, {"project_after": (7, 15)})
    assert experiment.epochs == 15


def test_network_without_prototypes_has_none_chosen():
    _, choices = own_images.choose("photo", [13] * 4, {"model": "cnn"})
    assert {choice.name for choice in choices} == {"batch_size", "epochs"}


def test_given_batch_that_is_too_large_is_refused_by_its_flag():
    with pytest.raises(UserError, match="--batch-size 500 is more than the 52 images to train on"):
        own_images.choose("photo", [13] * 4, {"batch_size": 500})


def test_small_validation_and_small_classes_are_warned_of():
    experiment = usual(per_class=4)
    small, fewer = own_images.warnings([13, 13, 3], 8, experiment)
    assert "validation has 8 images: one of them is 12.5 points" in small
    assert "1 of 3 classes have fewer training images than the 4 prototypes" in fewer
    assert own_images.warnings([13, 13, 4], 100, experiment) == []


# The command


def test_folder_is_trained_on_as_a_new_user_would(dpp, tmp_path):
    folder = write_folder(tmp_path / "my zoo", classes=3, images=10)
    (folder / "kind_0" / "notes.txt").write_text("not an image")
    code, out, err = dpp("train", "--data", "my zoo", *SMALL, "--epochs", 3)
    assert code == 0, err
    assert "3 classes, 30 images: 21 to train on, 3 for validation, 6 for test, split by dpp" in err
    assert "skipped, not images by their ending: kind_0/notes.txt" in err
    assert "photo profile; chosen for this folder" in err and "  --batch-size 8 " in err
    assert "--epochs" not in err  # it was given
    assert "warning: validation has 3 images" in err
    assert "expected: about" in err and "of memory" in err
    *_, last = out.splitlines()
    run = runs.open_run(last)
    assert run.experiment.profile == "photo" and run.experiment.data == str(folder)
    assert "of 6 test images correct" in out and "95 % interval" in out
    repeated = run_duplicates(run).count
    assert (f"warning: {repeated} of {len(run.origins)} prototypes repeat" in out) == (repeated > 0)
    lines = [shlex.split(line) for line in out.splitlines() if line.startswith("  dpp ")]
    (_, explained, *_), (_, reported, _) = lines
    assert (explained, reported) == ("explain", "report")
    assert f'set run = "{run.folder}"' in out
    for words in lines:  # what is said works
        code, _, err = dpp(*words[1:])
        assert code == 0, err
    code, again, err = dpp("train", "--data", folder, *SMALL, "--epochs", 3)
    assert code == 0 and again.splitlines()[-1] == last
    assert "expected" not in err  # it is finished


def test_named_profile_is_taken_as_it_is(dpp, tmp_path):
    write_folder(tmp_path / "zoo", classes=2, images=8)
    code, out, err = dpp("train", "--profile", "smoke", "--data", "zoo", *SMALL[:6])
    assert code == 0, err
    assert "smoke profile, as it is" in err
    experiment = runs.open_run(out.splitlines()[-1]).experiment
    smoke = make_experiment("smoke")
    assert (experiment.batch_size, experiment.epochs) == (smoke.batch_size, smoke.epochs)


def test_folder_with_train_and_test_is_not_split(dpp, tmp_path):
    for half, images in (("train", 5), ("test", 2)):
        write_folder(tmp_path / "zoo" / half, classes=2, images=images)
    source = data.load("zoo")
    lines = own_folder.describe_folder(source, source.train[2:], source.train[:2])
    assert lines == ["zoo: 2 classes, 14 images: 8 to train on, 2 for validation, 4 for test"]


def refused(answer: tuple[int, str, str]) -> str:
    """The last line of a command that was refused."""
    code, out, err = answer
    assert code == 2 and out == ""
    *_, line = err.splitlines()
    assert line.startswith("dpp: "), err
    return line


def write_text(path):
    path.write_text("not an image")


def cut_off(path):
    Image.effect_noise((60, 60), 90).save(path)
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize("spoil", [write_text, cut_off])
def test_damaged_images_are_all_named_before_time_is_spent(dpp, tmp_path, spoil, monkeypatch):
    folder = write_folder(tmp_path / "zoo", classes=2, images=8)
    for name in ("kind_0/a.jpg", "kind_1/b.jpg"):
        spoil(folder / name)
    monkeypatch.setattr(forecast, "timed", None)
    said = refused(dpp("train", "--data", "zoo", *SMALL))
    assert "2 images cannot be used" in said
    assert "a.jpg cannot be decoded" in said and "b.jpg" in said


def test_bad_folders_are_refused_in_one_line(dpp, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty has no subfolders: make one for each class" in refused(
        dpp("train", "--data", "empty")
    )
    write_folder(tmp_path / "single", classes=1, images=5)
    said = refused(dpp("train", "--data", "single"))
    assert "has one class, kind_0: training needs at least two" in said
    write_folder(tmp_path / "poor", classes=2, images=1)
    said = refused(dpp("train", "--data", "poor"))
    assert "kind_0 has 1 image (0.png) but needs at least 3" in said
    assert "there is no data set 'nowhere'" in refused(dpp("train", "--data", "nowhere"))
    write_folder(tmp_path / "zoo", classes=2, images=5)
    said = refused(dpp("train", "--data", "zoo", "--profile", "mini"))
    assert "base weights are for drawn data" in said


def test_batch_larger_than_the_folder_names_its_flag(dpp, tmp_path):
    write_folder(tmp_path / "zoo", classes=2, images=8)
    for words, batch in ((["--batch-size", 500], 500), (["--profile", "paper"], 80)):
        said = refused(dpp("train", "--data", "zoo", *SMALL[:6], *words))
        assert f"--batch-size {batch} is more than the 10 images to train on" in said
        assert "give at most 10" in said


def test_skipped_files_are_those_that_the_reader_skips(tmp_path):
    folder = write_folder(tmp_path / "zoo", classes=2, images=3)
    for name in ("list.csv", "kind_0/a.heic", "kind_0/.hidden", ".git/config"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert [path.name for path in skipped_files(folder)] == ["a.heic", "list.csv"]


# The forecast


@pytest.mark.parametrize("model", ["deformable", "protopnet", "tesnet", "prototree", "cnn"])
def test_forecast_counts_what_is_missing_and_leaves_nothing_behind(tmp_path, model):
    folder = write_folder(tmp_path / "zoo", classes=2, images=8)
    given = {"model": model, "weights": "none", "backbone": "resnet18", "image_size": 32}
    experiment = make_experiment("photo", data=str(folder), batch_size=4, views=2, **given)
    source = data.load(str(folder))
    expected = forecast.measure(experiment, source)
    assert expected.features.maps == 16 + 2 * 12 and expected.features.seconds > 0
    assert expected.seconds > expected.features.seconds
    assert expected.memory > 10**8 and expected.disk > 2 * 11_000_000 * 4
    assert not (tmp_path / "data" / "cache" / "trunk").exists()
    assert not (tmp_path / "runs").exists()


def test_forecast_knows_that_features_are_kept(tmp_path):
    folder = write_folder(tmp_path / "zoo", classes=2, images=8)
    given = {"weights": "none", "backbone": "resnet18", "image_size": 32, "views": 2}
    quick = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "batch_size": 4}
    experiment = make_experiment("photo", data=str(folder), **given, **quick)
    runs.make_trainer(experiment)
    before = torch.get_rng_state()
    assert forecast.measure(experiment, data.load(str(folder))).features.maps == 0
    assert torch.get_rng_state().equal(before)


def test_forecast_says_where_the_time_goes():
    features = Missing(320, 32_000_000, 40.0)
    said = own_folder.describe_forecast(Forecast(200, features, 1_400_000_000, 3 * 10**8, 0.9))
    assert said.startswith("expected: about 3 minutes, 40 seconds of it for trunk features; 1.4 GB")
    assert "32 MB for trunk features under" in said and "300 MB for the run" in said
    assert "other programs" not in said
    said = own_folder.describe_forecast(Forecast(200, Missing(0, 0, 0.0), 10**9, 10**8, 0.04))
    assert "trunk features" not in said
    assert "other programs leave it 4% of the processor" in said


def test_durations_and_amounts_read_as_estimates():
    assert own_folder.duration(4) == "10 seconds" and own_folder.duration(84) == "80 seconds"
    assert own_folder.duration(200) == "3 minutes" and own_folder.duration(7200) == "2.0 hours"
    assert own_folder.amount(26_000_000) == "26 MB" and own_folder.amount(1_500_000_000) == "1.5 GB"


@pytest.mark.parametrize(
    "results, said",
    [
        ({"test_offset": 0.0004, "test_active": 0.005}, ["median 0.000 cells; 0.5% of the"]),
        ({"test_offset": 0.02}, ["median 0.020 cells), so the network is as good as a rigid one"]),
        ({"test_offset": 0.3, "test_active": 0.9}, []),
        ({}, []),  # rigid, or of another kind
    ],
)
def test_parts_that_stay_where_they_were_are_warned_of(results, said):
    lines = own_folder.describe_moving(results)
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))


def test_accuracy_comes_with_its_interval():
    results = {"test_accuracy": 0.85, "validation_accuracy": 0.75}
    said = own_folder.accuracy_text(results, {"test": 20, "validation": 8})
    assert said.startswith("17 of 20 test images correct, 85.0% (95 % interval 64% to 95%)")
    assert said.endswith("6 of 8 validation images")
