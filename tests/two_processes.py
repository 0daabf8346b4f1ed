"""What one of two processes does for test_several_processes.py: `two_processes.py FOLDER`.

All in one pair of processes, since starting one takes seconds. Each part writes what it found to
`<part>-<rank>.json`.
"""

import copy
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from test_runs import tiny
from tiny_network import Enough, TinyBackbone, make_network
from torch import nn

from dpp import runs
from dpp.backbones.shared_batch_norm import share_batch_norm
from dpp.data.batches import Batch, merge, part_of, share
from dpp.extensions import searching_parts
from dpp.methods.table import METHODS
from dpp.runs import resumable, several_processes
from dpp.system import processes
from dpp.system.errors import UserError
from dpp.training import projection
from dpp.training.experiments import make_experiment
from dpp.training.trainer import freeze_all_but

SHORT = {
    "backbone": "slim_resnet34",  # no biases before batch norm, which Adam moves by noise
    "epochs": 3,
    "project_after": (3,),
    "last_layer": "passes",  # the other is determined up to its tolerance alone
}
METHOD_CHANGES = {
    "deformable": {},
    "released": {"variant": "released:mean_cross_entropy,mixed_orthogonality"},
    "cnn": {"model": "cnn"},
    "protopnet": {"model": "protopnet"},
    "tesnet": {"model": "tesnet"},
    "prototree": {"model": "prototree"},
    "search": {"deformation": "search"},
}
IMAGES = 5  # two for the first process, three for the other


def largest_difference(one, other) -> float:
    """Over all of some tensors, relative to the largest value of each, if it is not all noise."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(one, other, strict=True)]
    noise = 1e-6 * max(float(value.abs().max()) for value, _ in pairs)
    return max(float((a - b).abs().max() / (a.abs().max() + noise)) for a, b in pairs)


def own_part(values):
    rows = part_of(range(len(values)), processes.rank(), processes.count())
    return values[rows.start : rows.stop]


def compare_batch_norm(folder: Path) -> dict:
    """The parts' outputs, gradients and statistics against those of the whole batch."""
    torch.manual_seed(0)
    whole = nn.BatchNorm2d(4).double()
    nn.init.uniform_(whole.weight)
    nn.init.uniform_(whole.bias)
    shared = copy.deepcopy(whole)
    share_batch_norm(shared)
    images = torch.randn(IMAGES, 4, 3, 2, dtype=torch.double) + 7
    target = torch.randn_like(images)
    ours = own_part(images).requires_grad_()
    images.requires_grad_()
    expected, found = whole(images), shared(ours)
    (expected * target).sum().backward()
    (found * own_part(target)).sum().backward()
    gradients = [shared.weight.grad, shared.bias.grad]
    for gradient in gradients:
        torch.distributed.all_reduce(gradient)
    whole_values = [whole.weight.grad, whole.bias.grad, *whole.buffers(), own_part(images.grad)]
    shared_values = [*gradients, *shared.buffers(), ours.grad]
    return {
        "difference": largest_difference(whole_values, shared_values),
        "output": largest_difference([own_part(expected)], [found]),
    }


def compare_gradients(folder: Path) -> dict:
    """A step of each method: terms and gradients of the parts against those of the whole batch."""
    found = {}
    sizes = [len(part_of(range(IMAGES), number, 2)) for number in range(2)]
    for name, changes in METHOD_CHANGES.items():
        torch.manual_seed(0)
        experiment = make_experiment("mini", **{"kernel_size": 2, "per_class": 2} | changes)
        method = searching_parts.METHOD if name == "search" else METHODS[experiment.model]
        one = method.build(experiment, TinyBackbone(), 3).double()
        if hasattr(one, "offsets"):
            one.offsets.reset_parameters(0.3)
        if hasattr(one, "leaves"):
            one.leaves.evidence.normal_()
        for value in one.parameters():  # so that none are equal
            value.detach().mul_(1 + 0.1 * torch.rand_like(value))
        phase = method.schedule(experiment).phases[-1]
        freeze_all_but(one, phase.rates)
        several = copy.deepcopy(one)
        share_batch_norm(several)
        images = torch.rand(IMAGES, 3, 16, 16, dtype=torch.double)
        labels = torch.arange(IMAGES) % 3
        objective = method.objective(experiment)
        shared = several_processes.share_objective(objective, sizes)
        terms = objective(one, images, labels, phase)
        shared_terms = shared(several, own_part(images), own_part(labels), phase)
        terms["loss"].backward()
        shared_terms["loss"].backward()
        gradients = [
            [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
            for model in (one, several)
        ]
        found[name] = {
            "smallest": min(float(gradient.abs().max()) for gradient in gradients[0][2:]),
            "terms": largest_difference(terms.values(), shared_terms.values()),
            "gradients": largest_difference(*gradients),
            "buffers": largest_difference(one.buffers(), several.buffers()),
        }
    return found


def deal_out_batches(folder: Path) -> dict:
    """Three batches, then one, for two processes: merged in their order."""
    found = {}
    for count in (3, 1, 0):
        taken = list(share([torch.tensor([number, number]) for number in range(count)]))
        merged = merge([{"values": values} for values in taken])
        found[str(count)] = {
            "taken": [int(values[0]) for values in taken],
            "merged": {name: values.tolist() for name, values in merged.items()},
        }
    return found


def project_with_ties(folder: Path) -> dict:
    """Projection of images that are there twice, dealt out, against that of one process."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 16, 16, generator=generator, dtype=torch.double)
    images = torch.cat([images, images, images])  # of other processes and of one's own
    labels, indices = torch.arange(12) % 2, torch.arange(12)
    rows = torch.arange(12).split(2)
    batches = [Batch(images[few], labels[few], indices[few]) for few in rows]
    network = make_network(classes=2)
    dealt_out = projection.search(network, batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "count", lambda: 1)
        alone = projection.search(network, batches)
    names = ("similarity", "image", "centre", "moved", "samples")
    equal = {name: torch.equal(getattr(alone, name), getattr(dealt_out, name)) for name in names}
    return equal | {"images": dealt_out.image.tolist()}


def say_what_fails(function) -> dict:
    try:
        function()
    except UserError as error:
        return {"kind": type(error).__name__, "message": str(error)}
    return {}


def refuse_small_batches(folder: Path) -> dict:
    run = {"root": folder / "small", "progress": False}
    return say_what_fails(lambda: runs.run(tiny(**SHORT, batch_size=1), **run))


def refuse_other_data(folder: Path) -> dict:
    before = os.environ.get("DPP_DATA")
    os.environ["DPP_DATA"] = str(folder / f"data-{processes.rank()}")
    run = {"root": folder / "other", "progress": False}
    found = say_what_fails(lambda: runs.run(tiny(**SHORT, data="cub"), **run))
    os.environ.pop("DPP_DATA")
    if before:
        os.environ["DPP_DATA"] = before
    return found


def agree_on_a_signal(folder: Path) -> dict:
    return {
        "none": resumable.in_any_process([]),
        "one": resumable.in_any_process([15] if processes.rank() else []),
    }


def explain_what_is_not_finite(folder: Path) -> dict:
    experiment = tiny(**SHORT, prototype_rate=1e38, backbone_rate=1e38, warm_epochs=0)
    return say_what_fails(lambda: runs.run(experiment, root=folder / "infinite", progress=False))


def train(folder: Path) -> dict:
    """A run from its beginning, one that ends after two records, and one that is resumed."""
    experiment = tiny(**SHORT)
    runs.run(experiment, root=folder / "two", progress=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumable, "report", stop_at_second_record)
        with pytest.raises(Enough):
            runs.run(experiment, root=folder / "two to one", progress=False)
    runs.run(experiment, root=folder / "one to two", progress=False)
    return {}


def stop_at_second_record(bar, writer, record, place) -> None:
    if place == 2:
        raise Enough


PARTS = (
    compare_batch_norm,
    compare_gradients,
    deal_out_batches,
    project_with_ties,
    refuse_small_batches,
    refuse_other_data,
    agree_on_a_signal,
    explain_what_is_not_finite,
    train,
)


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = Path(sys.argv[1])
    with several_processes.joined("cpu"):
        for part in PARTS:
            path = results / f"{part.__name__}-{processes.rank()}.json"
            path.write_text(json.dumps(part(results)))
