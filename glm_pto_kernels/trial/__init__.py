"""Stand-in layers on which guarded statements run on a CPU, beside the statements that they replace.

They show that a guard calls its operator with the right values and gives its results the right names. They
show nothing about the speed or the numbers of an NPU.
"""
