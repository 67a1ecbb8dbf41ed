"""`torchvision:NAME`: a classifier of torchvision with random weights, if torchvision is installed."""

from __future__ import annotations

from paceline.errors import MissingPackage, UnknownName
from paceline.types import Workload
from paceline.workload.models._images import check_image, classifier


def torchvision(name: str, *, classes: int = 1000, image_size: int = 224) -> Workload:
    word = f"torchvision:{name}"
    try:
        from torchvision import models
    except ImportError:
        raise MissingPackage(f"model {word}", package="torchvision") from None
    known = models.list_models(module=models)  # classifiers only
    if name not in known:
        raise UnknownName("torchvision model", name, known)
    check_image(word, image_size=image_size, classes=classes)
    model = models.get_model(name, weights=None, num_classes=classes)
    return classifier(model, classes=classes, image_size=image_size)
