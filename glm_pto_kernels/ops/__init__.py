"""The operators, one a file: adaptation, conditions, reference and opaque op."""
