"""What a result that is rounded once to a dtype may differ by, as a norm relative to the norm of what is expected."""

import torch

CARD = torch.cuda.is_available()
TOLERANCE = {
    torch.float32: 1e-6,  # sums of up to 2048 numbers in another order
    torch.float16: 3e-4,  # half a unit in the last place is at most 2^-11 = 5e-4, its root mean square 2e-4
    # 2^-8 = 4e-3 and 1.7e-3; Triton's interpreter cuts digits off instead of rounding, which is twice that.
    torch.bfloat16: 2e-3 if CARD else 4e-3,
}
ONE_SUM = 1e-7
"""float32: a product and a sum, rounded together or one after the other."""
