"""What a model's heads look at in a text, as a picture that can be drawn.

`build.picture_of` makes the picture of a `heedful.models.reading.Reading`; it is numbers and words only
(`picture.Picture`). `terminal.draw` sets it as text. Every drawing starts from the same picture.
"""
