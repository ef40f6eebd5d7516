"""Let the reference show doctests as code: our docstrings say `Example:`, Google's style says `Examples:`."""

import griffe


class ExampleSections(griffe.Extension):
    """Rename the heading while docstrings are loaded."""

    def on_object(self, *, obj: griffe.Object, **more: object) -> None:
        """Change one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
