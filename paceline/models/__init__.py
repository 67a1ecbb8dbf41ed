"""Networks to train: each word builds a Workload, a network with its loss and its samples."""

from __future__ import annotations

from paceline.menu import Menu

MENU = Menu(
    "model",
    {
        "mlp": "paceline.models.mlp:mlp",
        "small_cnn": "paceline.models.small_cnn:small_cnn",
        "resnet18": "paceline.models.resnet:resnet18",
        "resnet34": "paceline.models.resnet:resnet34",
        "resnet50": "paceline.models.resnet:resnet50",
        "resnet101": "paceline.models.resnet:resnet101",
        "resnet152": "paceline.models.resnet:resnet152",
        "vgg16": "paceline.models.vgg:vgg16",
        "vgg19": "paceline.models.vgg:vgg19",
        "mobilenet_v2": "paceline.models.mobilenet_v2:mobilenet_v2",
        "densenet201": "paceline.models.densenet201:densenet201",
        "inception_v4": "paceline.models.inception_v4:inception_v4",
        "image_compression": "paceline.models.image_compression:image_compression",
        "bert_base": "paceline.models.bert:bert_base",
        "bert_large": "paceline.models.bert:bert_large",
    },
)
