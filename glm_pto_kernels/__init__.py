"""The operator layer that patched code imports. Depends on torch only."""
