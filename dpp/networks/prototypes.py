"""Features and prototypes on the hypersphere, and how far parts move (sections 3.1 and 3.2)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dpp import ops
from dpp.networks.released import PAPER, ReleasedSwitches

EPSILON = 1e-5  # the uniform extra channel's value, before scaling
OFFSET_CHANNELS = 128  # between the two convolutions of the offset branch
LOOSE = 1e-4  # what the released code has for EPSILON, and adds to squares and lengths
DAMPING = 1.01
LARGE = 64.0
PIECE = 2**17  # values that are scaled at a time


def fix_length(
    features: Tensor,
    length: float,
    epsilon: float = EPSILON,
    *,
    extra: int = 1,
    slack: float = 0.0,
    added: float = 0.0,
) -> Tensor:
    """Appends the uniform channel and scales every spatial vector to `length` (equations 2, 3).

    The extra channel keeps an all-zero vector from having no direction: it becomes
    (0, ..., 0, length).

    Args:
        features: (N, C, H, W) image features, or (P, C, K, K) prototypes.
        length: r = 1/sqrt(parts) in the paper.
        epsilon: the value of the extra channel before scaling.
        extra: how many such channels.
        slack: added to the squared length, which leaves short vectors shorter than `length`.
        added: added to the length itself.

    Returns:
        (N, C + extra, H, W), every vector along the channels of the given length.
    """
    return _FixLength.apply(features, length, epsilon, extra, slack, added)


class _FixLength(torch.autograd.Function):
    """x s, with s = length / (sqrt(|x|^2 + extra epsilon^2 + slack) + added).

    Prototypes are tens of megabytes, which autograd's own operations would read a dozen times;
    here, on a CPU, they are read piece by piece, and each piece stays in the cache.
    """

    @staticmethod
    def forward(ctx, features, length, epsilon, extra, slack, added):
        images, channels, *size = features.shape
        like = {"dtype": features.dtype, "device": features.device}
        layout = {"memory_format": torch.channels_last}  # what the operator wants
        fixed = torch.empty((images, channels + extra, *size), **like, **layout)
        root = torch.empty((images, 1, *size), **like)
        for piece in _pieces(features):
            squares = torch.linalg.vector_norm(features[piece], dim=1, keepdim=True).square()
            root[piece] = (squares + extra * epsilon**2 + slack).sqrt()
            scale = length / (root[piece] + added)
            torch.mul(features[piece], scale, out=fixed[piece, :channels])
            fixed[piece, channels:] = epsilon * scale
        ctx.save_for_backward(features, root)
        ctx.length, ctx.epsilon, ctx.added = length, epsilon, added
        return fixed

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, root = ctx.saved_tensors
        result = torch.empty_like(features)
        for piece in _pieces(features):
            x, kept = features[piece], grad[piece, : features.shape[1]]
            scale = ctx.length / (root[piece] + ctx.added)
            along = (kept * x).sum(dim=1, keepdim=True)
            along += ctx.epsilon * grad[piece, features.shape[1] :].sum(dim=1, keepdim=True)
            shrinks = along * scale.square() / (ctx.length * root[piece])  # -ds/dx = shrinks x
            torch.mul(kept, scale, out=result[piece]).addcmul_(x, shrinks, value=-1)
        return result, *5 * [None]


def _pieces(features: Tensor) -> list[slice]:
    """Slices of the first dimension that fit into a CPU's cache; elsewhere one for all."""
    size = max(1, features[0].numel()) if len(features) else 1
    step = max(1, PIECE // size) if features.device.type == "cpu" else max(1, len(features))
    return [slice(first, first + step) for first in range(0, len(features), step)]


class OffsetBranch(nn.Sequential):
    """The offset prediction function delta: from features of fixed length to (N, 2*K*K, H, W).

    All its weights are zero until `reset_parameters`: prototypes are rigid before joint training.
    """

    def __init__(self, channels: int, kernel_size: int, switches: ReleasedSwitches = PAPER):
        first, second = 3, 3
        if switches.offset_kernels and kernel_size == 2:  # others would change the map's size
            first, second = kernel_size + 2, kernel_size
        super().__init__(
            nn.Conv2d(channels, OFFSET_CHANNELS, first, padding=1),
            nn.ReLU(),
            nn.Conv2d(OFFSET_CHANNELS, 2 * kernel_size**2, second, padding=1),
        )
        self.scale = LARGE if switches.large_features else 1.0
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z if self.scale == 1 else self.scale * z)

    @contextmanager
    def watch(self) -> Iterator[list[Tensor]]:
        """Collects, from each pass, the share (N,) of ReLUs above zero, over units and places.

        A branch of which nothing is active no longer learns.
        """
        active = []
        hook = self[1].register_forward_hook(
            lambda layer, inputs, units: active.append((units > 0).float().mean(dim=(1, 2, 3)))
        )
        with hook:
            yield active

    def reset_parameters(self, deviation: float | None) -> None:
        """Draws the weights, when joint training starts; the biases stay zero.

        Args:
            deviation: of the weights of both convolutions; None for He's initialisation of the
                first, the second staying zero: no part moves at first, and the branch learns at
                once, where two layers of tiny weights pass on tiny gradients.
        """
        if deviation is None:
            nn.init.kaiming_normal_(self[0].weight, nonlinearity="relu")
            nn.init.zeros_(self[2].weight)
            return
        for convolution in (self[0], self[2]):
            nn.init.normal_(convolution.weight, std=deviation)


class Prototypes(nn.Module):
    """The deformable prototypes of all classes, in order of their classes.

    Args:
        channels: of the backbone's features.
        classes: how many.
        per_class: prototypes of a class.
        kernel_size: K; a prototype has K*K parts. Parts of an even K are two cells apart.
        switches: of the released code.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        per_class: int,
        kernel_size: int,
        switches: ReleasedSwitches = PAPER,
    ):
        super().__init__()
        vectors = torch.rand(classes * per_class, channels, kernel_size, kernel_size)
        self.vectors = nn.Parameter(vectors.contiguous(memory_format=torch.channels_last))
        self.register_buffer("classes", torch.arange(classes).repeat_interleave(per_class))
        self.switches = switches
        self.extra = 2 if switches.two_channels else 1
        self.epsilon = LOOSE if switches.two_channels else EPSILON
        self.slack = LOOSE if switches.loose_length else 0.0

    @property
    def kernel_size(self) -> int:
        return self.vectors.shape[-1]

    @property
    def geometry(self) -> dict[str, float | int | None]:
        """The operator's arguments besides tensors."""
        dilation = 1 if self.kernel_size % 2 else 2
        return {"dilation": dilation, "outside": 0.0 if self.switches.zero_outside else None}

    @property
    def length(self) -> float:
        """r, of every part and every feature."""
        return 1 / self.kernel_size

    def place_features(self, features: Tensor) -> Tensor:
        """The backbone's features (N, C, H, W) on the hypersphere (equation 3)."""
        at_least = torch.promote_types(features.dtype, torch.float32)  # also under autocast
        return self._fix_length(features.to(at_least))

    def normalised(self, prototypes: Tensor | None = None) -> Tensor:
        """The prototypes (P, C + 1, K, K), or some, on the hypersphere (equation 2)."""
        vectors = self.vectors if prototypes is None else self.vectors[prototypes]
        return self._fix_length(vectors, added=self.slack)

    def _fix_length(self, vectors: Tensor, added: float = 0.0) -> Tensor:
        given = {"extra": self.extra, "slack": self.slack, "added": added}
        return fix_length(vectors, self.length, self.epsilon, **given)

    def forward(
        self, z: Tensor, offsets: Tensor | None, normalised: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The cosine to the best place of each prototype, and that place (equation 8).

        Args:
            z: (N, C + 1, H, W), from `place_features`.
            offsets: (N, 2*K*K, H, W), or None for rigid prototypes.
            normalised: the result of `normalised`, if it is computed already.

        Returns:
            cosines (N, P), and places (N, P), flat indices into H*W.
        """
        prototypes = self.normalised() if normalised is None else normalised
        cosines, places = ops.max_similarity(z, offsets, prototypes, **self.geometry)
        return self.damp(cosines), places

    def damp(self, cosines: Tensor) -> Tensor:
        """The cosines, divided by 1.01 if the released code's switch is on."""
        return cosines / DAMPING if self.switches.damped_cosine else cosines

    @torch.no_grad()
    def replace(self, prototype: Tensor, samples: Tensor) -> None:
        """Replaces prototypes by the samples found under their parts (equation 15).

        `vectors` lack the extra channels, which are added before scaling: they are scaled so that
        these come out as sampled, also where a part lies on nothing at all.

        Args:
            prototype: (Q,), their numbers.
            samples: (Q, C + 1, K, K), from `ops.sample_parts`.
        """
        features, last = samples[:, : -self.extra], samples[:, -1:]
        scale = torch.where(last > 0, self.epsilon / last, 0)
        self.vectors[prototype] = features * scale

    @torch.no_grad()
    def rescale(self) -> None:
        """Gives every part's vector length 1, which sets how far a step of Adam turns it."""
        self.vectors.copy_(functional.normalize(self.vectors, dim=1))
