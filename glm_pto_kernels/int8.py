"""Exact integer products on any device, for the references."""

from __future__ import annotations

import torch

# 1024 products of magnitude 2**14 stay within fp32's 24 bits, in whatever order a device adds them.
EXACT = 1024


def matmul(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int32 [rows, columns] of values [rows, n], integers in -128..127, and int8 [n, columns]."""
    total = torch.zeros((values.shape[0], weight.shape[1]), dtype=torch.int32, device=values.device)
    for part, rows in zip(values.split(EXACT, dim=1), weight.split(EXACT, dim=0), strict=True):
        total += (part.float() @ rows.float()).to(torch.int32)
    return total
