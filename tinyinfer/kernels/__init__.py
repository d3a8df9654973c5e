"""The inner loops. Nothing above this package knows how a product is computed."""
