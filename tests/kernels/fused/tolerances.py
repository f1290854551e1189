"""Tolerances for results rounded once to a dtype: the norm of the error divided by the norm of the expected result."""

import torch

ON_GPU = torch.cuda.is_available()
TOLERANCE = {
    torch.float32: 1e-6,  # sums of up to 2048 terms in another order
    torch.float16: 3e-4,  # half a unit in the last place is at most 2^-11 = 5e-4, its root mean square 2e-4
    # 2^-8 = 4e-3 and 1.7e-3; Triton's interpreter truncates instead of rounding, which doubles the error.
    torch.bfloat16: 2e-3 if ON_GPU else 4e-3,
}
ONE_SUM = 1e-7
"""float32: a product and a sum, rounded together or separately."""
