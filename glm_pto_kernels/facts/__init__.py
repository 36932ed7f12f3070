"""What an operator asks of a layer or a call that is built elsewhere; the same stem as in ``ops``.

An operator that asks two or three facts has them beside its condition, and no file here.
"""
