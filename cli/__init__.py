"""Command line of glm-pto."""
