"""One process, or several by Ray Train: every worker takes its share of the batches, gradients are averaged, the first one writes."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from drawloom.jobs.train.settings import TrainSettings

T = TypeVar("T")


def run(train: Callable[[Any], None], settings: TrainSettings) -> None:
    """Run a recipe on settings.workers workers. With more than one, Ray starts them; each has its own device."""
    if settings.workers == 1:
        return train(settings)
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def loop() -> None:
        train(settings)

    started = not ray.is_initialized()
    if started:
        ray.init(address="local", num_cpus=settings.workers + 1, include_dashboard=False, configure_logging=False)
    try:
        scale = ScalingConfig(num_workers=settings.workers, use_gpu=settings.device == "cuda")
        TorchTrainer(loop, scaling_config=scale, run_config=RunConfig(storage_path=settings.output, name="ray")).fit()
    finally:
        if started:
            ray.shutdown()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def share(source: Iterator[T], settings: TrainSettings) -> Iterator[T]:
    """This worker's batches: every settings.workers-th."""
    return islice(source, rank(), None, settings.workers)


def average(network: nn.Module, settings: TrainSettings) -> None:
    """Make every worker's gradients their mean."""
    if settings.workers == 1:
        return
    grads = [weight.grad for weight in network.parameters() if weight.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= settings.workers
    for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(mean.view_as(grad))
