"""Tensor to smaller payload and back."""

from paceline.menu import Menu

MENU = Menu(
    "compressor",
    {"none": "paceline.compressors.none:NoCompression", "cast": "paceline.compressors.cast:Cast"},
)
