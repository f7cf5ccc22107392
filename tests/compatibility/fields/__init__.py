"""A test for each field that docs/compatibility.md calls done: it sets or reads the field and looks at the effect."""
