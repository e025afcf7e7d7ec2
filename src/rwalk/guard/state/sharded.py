"""A parameter that is shared out among processes (FSDP2): its whole, and the part that this rank holds."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

Group = tuple[str, Any]  # a device type and the process group that talks on it


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor, without an import of torch.distributed.tensor."""
    return hasattr(tensor, "placements")


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this rank holds."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def like(shard: Tensor, whole: Any) -> Any:
    """A tensor of this rank as the shard of one that is shared out as `whole` is."""
    if not is_sharded(whole):
        return shard
    from torch.distributed.tensor import DTensor

    mesh, placements = _sharding(whole)
    return DTensor.from_local(shard, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def fitted(full: Tensor, parameter: nn.Parameter) -> Tensor:
    """This rank's part of a full tensor, zeros where the parameter has grown beyond it."""
    if full.shape != parameter.shape:
        padded = full.new_zeros(parameter.shape)
        padded[tuple(slice(size) for size in full.shape)] = full
        full = padded
    if not is_sharded(parameter):
        return full
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = _sharding(parameter)
    shard: Any = distribute_tensor(full.to(mesh.device_type), mesh, placements, src_data_rank=None)
    return local(shard)


def gathered(shard: Tensor, parameter: nn.Parameter) -> Tensor:
    """The full tensor of which every rank holds a shard, as it does of the parameter."""
    if not is_sharded(parameter):
        return shard
    from torch.distributed.tensor import DTensor

    mesh, placements = _sharding(parameter)
    shape, stride = parameter.shape, parameter.stride()
    whole = DTensor.from_local(shard.to(mesh.device_type), mesh, placements, shape=shape, stride=stride)
    return whole.full_tensor()


def groups(parameter: nn.Parameter) -> tuple[Group, ...]:
    """The process groups that share a parameter out among them, and the device they talk on."""
    if not is_sharded(parameter):
        return ()
    mesh, placements = _sharding(parameter)
    return tuple((mesh.device_type, mesh.get_group(i)) for i, at in enumerate(placements) if at.is_shard())


def _sharding(parameter: Any) -> tuple[Any, Any]:
    return parameter.device_mesh, parameter.placements
