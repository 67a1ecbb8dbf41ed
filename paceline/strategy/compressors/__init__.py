"""Compressors: turn a tensor into a smaller payload, and back."""

from paceline.menu.menu import Menu

MENU = Menu(
    "compressor",
    {
        "none": ".none:NoCompression",
        "cast": ".cast:Cast",
        "feedback": ".feedback:Feedback",
        "topk": ".topk:TopK",
        "gtopk": ".gtopk:GTopK",
        "randomk": ".randomk:RandomK",
        "threshold": ".threshold:Threshold",
        "dgc": ".dgc:Dgc",
        "sign": ".sign:Sign",
        "efsign": ".efsign:EfSign",
        "onebit": ".onebit:OneBit",
        "qsgd": ".qsgd:Qsgd",
        "terngrad": ".terngrad:TernGrad",
        "natural": ".natural:Natural",
        "powersgd": ".powersgd:PowerSgd",
    },
    package=__name__,
)
