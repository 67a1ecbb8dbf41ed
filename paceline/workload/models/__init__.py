"""Networks to train. Each word builds a Workload: a network with its loss and its samples."""

from __future__ import annotations

from paceline.menu.menu import Menu

MENU = Menu(
    "model",
    {
        "mlp": ".mlp:mlp",
        "small_cnn": ".small_cnn:small_cnn",
        "resnet18": ".resnet:resnet18",
        "resnet34": ".resnet:resnet34",
        "resnet50": ".resnet:resnet50",
        "resnet101": ".resnet:resnet101",
        "resnet152": ".resnet:resnet152",
        "vgg16": ".vgg:vgg16",
        "vgg19": ".vgg:vgg19",
        "mobilenet_v2": ".mobilenet_v2:mobilenet_v2",
        "densenet201": ".densenet201:densenet201",
        "inception_v4": ".inception_v4:inception_v4",
        "image_compression": ".image_compression:image_compression",
        "bert_base": ".bert:bert_base",
        "bert_large": ".bert:bert_large",
    },
    package=__name__,
)
