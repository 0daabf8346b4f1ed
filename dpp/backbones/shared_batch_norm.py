"""Batch norm over the images of all processes that train one network.

Statistics of a process's own share would be others than those of the whole batch: the network would
not be the one that a single process trains. PyTorch's `SyncBatchNorm` does this on GPUs alone; here
it is for any device, in the same way: one exchange forward, one backward.
"""

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable


def share_batch_norm(model: nn.Module) -> None:
    """Lets every batch norm of a network take the statistics of all processes' images.

    Names, weights and statistics stay; a batch norm in evaluation mode works as before.
    """
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SharedBatchNorm2d


class SharedBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` over the images of all processes, of which each may have another number."""

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return super().forward(images)
        mean, variance, count = total_statistics(images.detach().to(self.weight.dtype))
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        return _Normalise.apply(images, self.weight, self.bias, mean, variance, count, self.eps)


def total_statistics(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (C,) over all processes' images (N, C, H, W), and of how many values (1,).

    As a tensor, since a number would make a GPU wait.
    """
    own_mean, own_variance = torch.batch_norm_update_stats(images, None, None, 0.0)
    own_count = own_mean.new_tensor([images.numel() // images.shape[1]])
    own = torch.cat([own_mean, own_variance, own_count])
    parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, own)
    means, variances, counts = torch.stack(parts).split([len(own_mean), len(own_variance), 1], 1)
    shares = counts / counts.sum()  # (processes, 1)
    mean = (shares * means).sum(dim=0)
    variance = (shares * (variances + (means - mean).square())).sum(dim=0)
    return mean, variance, counts.sum(dim=0)


class _Normalise(torch.autograd.Function):
    """(images - mean) / sqrt(variance + eps) * weight + bias, with statistics of all processes.

    With y the normalised images, s = weight / sqrt(variance + eps) and means over all processes'
    values, the gradient to the images is s (g - mean(g) - y mean(g y)).
    """

    @staticmethod
    def forward(ctx, images, weight, bias, mean, variance, count, eps):
        ctx.save_for_backward(images, weight, mean, variance, count)
        ctx.eps = eps
        return torch.native_batch_norm(images, weight, bias, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        images, weight, mean, variance, count = ctx.saved_tensors
        # in evaluation mode: s g, and the sums of g y and of g over this process's images
        to_images, to_weight, to_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, images, weight, mean, variance, None, None, False, ctx.eps, [True] * 3
        )
        sums = torch.stack([to_bias, to_weight])
        distributed.all_reduce(sums)
        inverse = (variance + ctx.eps).rsqrt()
        to_mean, to_slope = weight * inverse / count * sums
        slope = -to_slope * inverse  # y = (images - mean) * inverse
        constant = -to_mean - slope * mean
        shape = (-1, 1, 1)
        to_images = to_images.addcmul(images, slope.view(shape).to(images.dtype))
        return to_images.add_(constant.view(shape)), to_weight, to_bias, None, None, None, None
