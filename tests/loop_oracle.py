"""The deformable prototype in nested loops, term by term from the paper's equations. It checks
`dpp.reference`, so it shares no code with it. Slow: for a few places and channels."""

import math

import torch
from torch import Tensor


def resting_steps(kernel_size: int, dilation: int) -> list[int]:
    """m (or n) of each part: {-1, 0, 1} for 3x3, {-1, 1} for 2x2 with dilation 2."""
    return [int((i - (kernel_size - 1) / 2) * dilation) for i in range(kernel_size)]


def cell(z: Tensor, image: int, i: int, j: int, outside: float) -> Tensor:
    """The vector at a whole place of the plane, on the map or off it."""
    if 0 <= i < z.shape[2] and 0 <= j < z.shape[3]:
        return z[image, :, i, j]
    vector = torch.zeros(z.shape[1], dtype=z.dtype)
    vector[-1] = outside
    return vector


def hat(distance: float) -> float:
    """max(0, 1 - |distance|), a factor of the supplement's zeta."""
    return max(0.0, 1 - abs(distance))


def neighbours(place: float) -> list[int]:
    """The whole places whose hat can be above zero."""
    return [math.floor(place), math.floor(place) + 1]


def zeta(z: Tensor, image: int, y: float, x: float, outside: float) -> Tensor:
    """The supplement's sum over i, j of z_ij^2 hat(y - i) hat(x - j)."""
    if not (math.isfinite(y) and math.isfinite(x)):
        return cell(z, image, -1, -1, outside) ** 2
    total = torch.zeros(z.shape[1], dtype=z.dtype)
    for i in neighbours(y):
        for j in neighbours(x):
            total = total + cell(z, image, i, j, outside) ** 2 * hat(y - i) * hat(x - j)
    return total


def places_of_parts(
    offsets: Tensor | None, image: int, a: int, b: int, kernel_size: int, dilation: int
) -> list[tuple[float, float]]:
    """(a + m + delta_1, b + n + delta_2) of each part."""
    places = []
    for m in resting_steps(kernel_size, dilation):
        for n in resting_steps(kernel_size, dilation):
            part = len(places)
            down, right = 0.0, 0.0
            if offsets is not None:
                down = offsets[image, 2 * part, a, b].item()
                right = offsets[image, 2 * part + 1, a, b].item()
            places.append((a + m + down, b + n + right))
    return places


def sample(z, offsets, image, a, b, kernel_size, dilation, outside) -> Tensor:
    """(C, K, K): the interpolated features under a prototype at (a, b)."""
    places = places_of_parts(offsets, image, a, b, kernel_size, dilation)
    samples = [zeta(z, image, y, x, outside).sqrt() for y, x in places]
    return torch.stack(samples, dim=1).view(-1, kernel_size, kernel_size)


def similarity_map(z, offsets, prototypes, dilation, outside) -> Tensor:
    """(N, P, H, W), equation 5."""
    images, _, height, width = z.shape
    count, _, kernel_size, _ = prototypes.shape
    result = torch.zeros(images, count, height, width, dtype=z.dtype)
    for image in range(images):
        for a in range(height):
            for b in range(width):
                under = sample(z, offsets, image, a, b, kernel_size, dilation, outside)
                for p in range(count):
                    result[image, p, a, b] = (prototypes[p] * under).sum()
    return result


def slope(distance: float) -> int:
    """The cases of the supplement's d zeta / d delta, for place - cell = `distance`."""
    if abs(distance) >= 1:
        return 0
    return 1 if distance < 0 else -1


def half_inverse(root: Tensor) -> Tensor:
    """d sqrt(zeta) / d zeta, where it exists; 0 where zeta is 0, as it is far outside the map."""
    return torch.where(root > 0, 1 / (2 * root), 0)


def gradients(z, offsets, prototypes, image, p, a, b, dilation, outside):
    """The supplement's gradients of g_{a,b} for one prototype, by its own terms.

    Returns:
        dg/dz (C, H, W), dg/d offsets (2*parts), dg/d prototype (C, K, K).
    """
    _, channels, height, width = z.shape
    kernel_size = prototypes.shape[2]
    parts = kernel_size * kernel_size
    to_z = torch.zeros(channels, height, width, dtype=z.dtype)
    to_offsets = torch.zeros(2 * parts, dtype=z.dtype)
    to_prototype = torch.zeros(channels, parts, dtype=z.dtype)
    places = places_of_parts(offsets, image, a, b, kernel_size, dilation)
    for part, (y, x) in enumerate(places):
        root = zeta(z, image, y, x, outside).sqrt()
        to_prototype[:, part] = root  # dg/dp = the sample
        to_root = prototypes[p].flatten(1)[:, part]  # dg / d z_interp
        to_zeta = to_root * half_inverse(root)
        for i in neighbours(y):
            for j in neighbours(x):
                vector = cell(z, image, i, j, outside)
                if 0 <= i < height and 0 <= j < width:
                    to_z[:, i, j] += to_zeta * 2 * vector * hat(y - i) * hat(x - j)
                square = to_zeta * vector**2
                to_offsets[2 * part] += (square * hat(x - j) * slope(y - i)).sum()
                to_offsets[2 * part + 1] += (square * hat(y - i) * slope(x - j)).sum()
    return to_z, to_offsets, to_prototype.view(channels, kernel_size, kernel_size)


def released_gradients(z, offsets, prototypes, image, p, a, b, dilation, outside):
    """As `gradients`, with the two slips of the released code in its backward pass.

    The prototype's gradient is a bilinear sample of the features themselves, and the offsets'
    slopes use features where they should use their squares.
    """
    _, channels, _, _ = z.shape
    kernel_size = prototypes.shape[2]
    parts = kernel_size * kernel_size
    to_z, _, _ = gradients(z, offsets, prototypes, image, p, a, b, dilation, outside)
    to_offsets = torch.zeros(2 * parts, dtype=z.dtype)
    to_prototype = torch.zeros(channels, parts, dtype=z.dtype)
    places = places_of_parts(offsets, image, a, b, kernel_size, dilation)
    for part, (y, x) in enumerate(places):
        root = zeta(z, image, y, x, outside).sqrt()
        to_zeta = prototypes[p].flatten(1)[:, part] * half_inverse(root)
        for i in neighbours(y):
            for j in neighbours(x):
                vector = cell(z, image, i, j, outside)
                to_prototype[:, part] += vector * hat(y - i) * hat(x - j)
                to_offsets[2 * part] += (to_zeta * vector * hat(x - j) * slope(y - i)).sum()
                to_offsets[2 * part + 1] += (to_zeta * vector * hat(y - i) * slope(x - j)).sum()
    return to_z, to_offsets, to_prototype.view(channels, kernel_size, kernel_size)
