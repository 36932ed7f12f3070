"""The operators, one a file: adaptation, conditions, reference and opaque op."""

import torch

OLDEST_TORCH = "2.5"  # the first that registers operators whose annotations are text

if [int(number) for number in torch.__version__.split(".")[:2]] < [int(n) for n in OLDEST_TORCH.split(".")]:
    raise ImportError(
        f"glm_pto_kernels needs torch {OLDEST_TORCH} or later, found {torch.__version__}; "
        "update torch, or take the guards out with `glm-pto revert`"
    )
