"""Attention to ranges in plain PyTorch: the definition that the kernels are compared with."""

import torch


def attend_ranges_reference(
    query: torch.Tensor, memory: torch.Tensor, ranges: torch.Tensor, compute_dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v over the places of each sight's ranges, computed and returned in `compute_dtype`.

    query [S, P, H, D]; memory [2, T, H, D]; ranges [S, R, 2], first place and last + 1. A place in two ranges counts
    twice; a sight with no place gets zeros. Reads `ranges` on the host. Takes P n floats of memory for n places.
    """
    out = torch.zeros(query.shape, dtype=compute_dtype, device=query.device)
    for s, bounds in enumerate(ranges.tolist()):
        seen = [memory[:, first:stop] for first, stop in bounds if first < stop]
        if not seen:
            continue
        places = torch.cat([part.to(compute_dtype) for part in seen], 1)  # [2, n, H, D]
        for h in range(query.shape[2]):
            keys, values = places[:, :, h]
            scores = query[s, :, h].to(compute_dtype) @ keys.mT * query.shape[3] ** -0.5
            out[s, :, h] = scores.softmax(-1) @ values
    return out
