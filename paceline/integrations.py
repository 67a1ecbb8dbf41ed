"""Callbacks that use paceline inside `transformers.Trainer` and Lightning.

    Trainer(model, args, train_dataset=data, callbacks=[TrainerCallback(strategy="allreduce")])
    lightning.Trainer(devices=1, callbacks=[lightning_callback(strategy="allreduce")])

The frameworks shard the data and write logs as usual; paceline only exchanges the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.api.ddp_hook import comm_hook as make_hook
from paceline.api.join import Worker, current, join
from paceline.api.wrap import wrap
from paceline.errors import MissingPackage, WrongCommand

__all__ = ["TrainerCallback", "lightning_callback"]

try:
    from transformers import TrainerCallback as _TransformersCallback
except ImportError:  # the class exists without transformers, and its constructor says what is missing
    _TransformersCallback = object  # type: ignore[assignment,misc]


def _worker() -> Worker:
    try:
        return current()
    except WrongCommand:
        return join()


class TrainerCallback(_TransformersCallback):
    """A callback that lets `transformers.Trainer` train with any strategy. Arguments are those of `paceline.wrap`.

    With several processes, Trainer would wrap the model in DDP. This callback prevents that, so that gradients are
    exchanged only once. With `comm_hook="topk"` the model is wrapped in DDP, and DDP uses that compressor.
    """

    def __init__(self, *, comm_hook: str | None = None, **settings: Any) -> None:
        if _TransformersCallback is object:
            raise MissingPackage("TrainerCallback", package="transformers", extra="integrations")
        if comm_hook is not None and settings:
            raise WrongCommand("comm_hook with other settings", why="DDP owns the exchange", remedy="one of both")
        self._settings, self._hook = settings, comm_hook
        self.pace: Any = None
        self._restore: Callable[[], None] = lambda: None

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Prevent accelerate from wrapping this model in DDP, or register the comm hook on DDP."""
        from accelerate import Accelerator

        prepare = Accelerator.prepare_model
        hook = self._hook

        def prepare_model(self: Any, prepared: Any, *arguments: Any, **named: Any) -> Any:
            if prepared is not model:
                return prepare(self, prepared, *arguments, **named)
            if hook is None:
                return prepare(self, prepared, evaluation_mode=True)
            wrapped = prepare(self, prepared, *arguments, **named)
            wrapped.register_comm_hook(*make_hook(hook, model))
            return wrapped

        Accelerator.prepare_model = prepare_model
        self._restore = lambda: setattr(Accelerator, "prepare_model", prepare)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        self._restore()
        if self._hook is not None:
            return
        _worker()
        self.pace = wrap(model, getattr(optimizer, "optimizer", optimizer), **self._settings)
        model.no_sync = self.pace.no_sync  # Trainer accumulates gradients in it

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self.pace is not None:
            self.pace.finish()
            self.pace.close()
            del model.no_sync


def lightning_callback(**settings: Any) -> Any:
    """Return a callback for `lightning.Trainer`; arguments are those of `paceline.wrap`.

    Use it with `devices=1`: every process is a Trainer of its own, and paceline exchanges gradients among them. Use
    `worker.batches`, or a DistributedSampler with `num_replicas` and `rank`, for the data.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise MissingPackage("lightning_callback", package="lightning", extra="integrations") from None

    class Paced(Callback):  # type: ignore[misc,unused-ignore]
        pace: Any = None

        def on_train_start(self, trainer: Any, module: Any) -> None:
            if len(trainer.optimizers) != 1:
                raise WrongCommand(
                    f"a Lightning module with {len(trainer.optimizers)} optimizers",
                    why="the callback wraps the module with one",
                    remedy="paceline.wrap for each part in on_train_start of your own module",
                )
            _worker()
            self.pace = wrap(module, trainer.optimizers[0], **settings)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            if self.pace is not None:
                self.pace.finish()
                self.pace.close()

    return Paced()
