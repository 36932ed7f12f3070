"""Kernels in CUDA C++ for what Triton cannot say, compiled at run time with the compiler that torch brings.

Imported only when a call needs them.
"""
