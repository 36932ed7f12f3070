"""The patcher: recipes, engine and transaction. Depends on libcst only, never on torch."""
