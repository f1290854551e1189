"""Attention to ranges in plain PyTorch: the definition that the kernels are tested against."""

import torch


def attend_ranges_reference(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    ranges: torch.Tensor,
    compute_dtype: torch.dtype = torch.float32,
    beside: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v over the slots of each frame's ranges, computed and returned in `compute_dtype`.

    query [S, P, H, D]; kv_cache [2, T, H, D]; ranges [S, R, 2], each the first slot and the slot after the last one;
    beside, keys and values [S, E, H, D] of tokens that each frame attends to besides. A slot in two ranges counts
    twice; a frame that attends to nothing gets zeros. Reads `ranges` on the host. If a frame attends to
    n slots, the computation needs memory for P n numbers.
    """
    out = torch.zeros(query.shape, dtype=compute_dtype, device=query.device)
    for s, bounds in enumerate(ranges.tolist()):
        seen = [kv_cache[:, first:stop] for first, stop in bounds if first < stop]
        if beside is not None:
            seen.append(torch.stack([tokens[s] for tokens in beside]))
        if not seen:
            continue
        slots = torch.cat([part.to(compute_dtype) for part in seen], 1)  # [2, n, H, D]
        for h in range(query.shape[2]):
            keys, values = slots[:, :, h]
            scores = query[s, :, h].to(compute_dtype) @ keys.mT * query.shape[3] ** -0.5
            out[s, :, h] = scores.softmax(-1) @ values
    return out
