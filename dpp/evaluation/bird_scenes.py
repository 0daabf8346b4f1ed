"""Birds of PoseBirds that are drawn again, and networks that are asked about them."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.special import softmax
from torch import Tensor, nn

from dpp.analysis.network import Network
from dpp.data.batches import ImageDataset
from dpp.data.image_records import Box, ImageRecord, Source
from dpp.data.images import region_of, squeeze
from dpp.data.transforms import Geometry, normalise
from dpp.drawn import individuals, posebirds
from dpp.drawn.individuals import Individual
from dpp.drawn.species import Word, kinds
from dpp.evaluation.part_importance import Explainer
from dpp.evaluation.part_protocols import THINGS, Question
from dpp.evaluation.scores import NotApplicable
from dpp.runs import Run
from dpp.system.errors import UserError

BATCH = 100  # pictures that a classifier is asked about at a time
MOST_BYTES = 2**28  # of pictures that are kept for the next network


@dataclass(frozen=True, eq=False)
class Classifier:
    """A network without prototypes, of which what needs no explanation can be measured."""

    model: nn.Module
    name: str
    source: Source
    size: int
    crop_to_box: bool = False
    is_tree = False
    prepare = Network.prepare

    @classmethod
    def of(cls, run: Run, device: str = "cpu") -> "Classifier":
        """The network of a run."""
        experiment = run.experiment
        shown = (experiment.image_size, experiment.crop_to_box)
        return cls(run.load_model(device), run.folder.name, run.source, *shown)


class Scene(NamedTuple):
    """One image of the data set, whose bird can be drawn again."""

    bird: Individual
    label: int
    region: Box  # of the picture that the network sees
    masks: np.ndarray  # (`THINGS`, height, width)

    @classmethod
    def of(cls, source: Source, record: ImageRecord, crop_to_box: bool) -> "Scene":
        bird = individuals.of_record(source.root, record.path, record.label)
        masks = individuals.masks(bird)
        region = region_of(record, bird.size, bird.size, crop_to_box)
        return cls(bird, record.label, region, np.stack([masks[name] for name in THINGS]))


_DRAWN: dict[tuple, np.ndarray] = {}  # pictures by what they show: all networks are shown the same


def draw(bird: Individual, without: frozenset[str], kind: Word | None) -> np.ndarray:
    """(height, width, 3) uint8; the same again costs nothing."""
    key = (bird, without, kind)
    if key not in _DRAWN:
        if len(_DRAWN) * 3 * bird.size**2 > MOST_BYTES:
            _DRAWN.clear()
        _DRAWN[key] = bird.draw(without, kind).pixels
    return _DRAWN[key]


_ANSWERED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # logits, by network


class Subject:
    """A classifier that is asked about some birds; it is shown each picture once.

    Args:
        network: that classifies.
        scenes: of the birds.
        probabilities: whether it answers with probabilities rather than logits.
    """

    def __init__(
        self, network: Network | Classifier, scenes: Sequence[Scene], probabilities: bool = False
    ):
        self.network, self.scenes = network, scenes
        self._probabilities = probabilities or network.is_tree
        self._logits: dict[tuple, np.ndarray] = _ANSWERED.setdefault(network, {})

    def show(self, questions: Sequence[Question]) -> Tensor:
        """(questions, 3, size, size), as the network takes them."""
        pictures = []
        for bird, without, kind in questions:
            scene = self.scenes[bird]
            image = Image.fromarray(draw(scene.bird, without, kind))
            pictures.append(squeeze(image, scene.region, self.network.size))
        return normalise(torch.from_numpy(np.stack(pictures)))

    @torch.no_grad()
    def ask(self, questions: Sequence[Question]) -> np.ndarray:
        """The scores (questions, classes)."""
        keys = [(self.scenes[one.bird].bird, one.without, one.kind) for one in questions]
        asked = dict(zip(keys, questions, strict=True))
        new = [key for key in asked if key not in self._logits]
        for first in range(0, len(new), BATCH):
            some = new[first : first + BATCH]
            pictures = self.network.prepare(self.show([asked[key] for key in some]))
            logits = self.network.model(pictures).double().cpu().numpy()
            self._logits.update(zip(some, logits, strict=True))
        scores = np.stack([self._logits[key] for key in keys])
        return softmax(scores, axis=1) if self._probabilities else scores

    def explainer(self) -> Explainer:
        """Of the whole birds."""
        network, scenes = self.network, self.scenes
        given = (network.size, network.cell_centres)
        geometries = [Geometry(scene.region, *given) for scene in scenes]
        whole = self.show([Question(bird) for bird in range(len(scenes))])
        return Explainer(network, whole, geometries, [scene.masks for scene in scenes])


def find_words(network: Network | Classifier) -> list[Word]:
    """The attributes of a network's classes, if they are those of PoseBirds."""
    names = list(network.source.class_names)
    for base in (False, True):
        try:
            if names == posebirds.class_names(len(names), base=base):
                return kinds(len(names), base=base)
        except UserError:  # there are not so many
            continue
    raise NotApplicable(
        f"interventions do not apply to {network.name}: {network.source.name} is not PoseBirds, "
        "and only its birds can be drawn without a part"
    )


def choose_birds(network, dataset: ImageDataset, most: int) -> list[Scene]:
    """The first images of each class as scenes."""
    counts: dict[int, int] = {}
    scenes = []
    for record in dataset.records:
        counts[record.label] = counts.get(record.label, 0) + 1
        if counts[record.label] <= most:
            scenes.append(Scene.of(network.source, record, network.crop_to_box))
    return scenes
