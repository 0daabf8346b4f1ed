"""Features and prototypes on the hypersphere (equations 2 and 3 of the paper)."""

import torch
from torch import Tensor

EPSILON = 1e-5  # the uniform extra channel's value, before scaling


def fix_length(features: Tensor, length: float, epsilon: float = EPSILON) -> Tensor:
    """Appends the uniform channel and scales every spatial vector to `length`.

    The extra channel keeps an all-zero vector from having no direction: it becomes
    (0, ..., 0, length).

    Args:
        features: (N, C, H, W) image features, or (P, C, K, K) prototypes.
        length: r = 1/sqrt(parts) in the paper.
        epsilon: the value of the extra channel before scaling.

    Returns:
        (N, C + 1, H, W), every vector along the channels of the given length.
    """
    extra = torch.full_like(features[:, :1], epsilon)
    extended = torch.cat([features, extra], dim=1)
    return extended * (length / torch.linalg.vector_norm(extended, dim=1, keepdim=True))
