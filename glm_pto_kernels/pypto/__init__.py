"""PyPTO kernels for Ascend systems, one operator a file; none of them has been run on hardware by us.

Importing a module here needs torch only. ``refusal`` and ``tiles`` are pure; ``launch`` checks the arguments;
pypto itself is imported when a kernel is built, and that happens on the first call with NPU tensors.
"""
