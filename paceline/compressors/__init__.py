"""Tensor to smaller payload and back."""

from paceline.menu import Menu

MENU = Menu(
    "compressor",
    {
        "none": "paceline.compressors.none:NoCompression",
        "cast": "paceline.compressors.cast:Cast",
        "feedback": "paceline.compressors.feedback:Feedback",
        "topk": "paceline.compressors.topk:TopK",
        "gtopk": "paceline.compressors.gtopk:GTopK",
        "randomk": "paceline.compressors.randomk:RandomK",
        "threshold": "paceline.compressors.threshold:Threshold",
        "dgc": "paceline.compressors.dgc:Dgc",
        "sign": "paceline.compressors.sign:Sign",
        "efsign": "paceline.compressors.efsign:EfSign",
        "onebit": "paceline.compressors.onebit:OneBit",
        "qsgd": "paceline.compressors.qsgd:Qsgd",
        "terngrad": "paceline.compressors.terngrad:TernGrad",
        "natural": "paceline.compressors.natural:Natural",
        "powersgd": "paceline.compressors.powersgd:PowerSgd",
    },
)
