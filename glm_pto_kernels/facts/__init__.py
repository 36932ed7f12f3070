"""What an operator asks of a layer that is built elsewhere, one operator a file; the same stem as in ``ops``.

An operator that asks two or three facts has them in its condition and has no file here.
"""
