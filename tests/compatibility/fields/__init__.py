"""A test for each field that docs/compatibility.md calls done: it sets or reads the field and checks the effect."""
