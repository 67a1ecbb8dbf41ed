"""Run by every rank: transformers.Trainer on a tiny model. The mode is ddp, paceline or hook; rank 0 writes losses."""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

from paceline.integrations import TrainerCallback

mode, out = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
model = BertForMaskedLM(
    BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
)
dice = torch.Generator().manual_seed(1)
tokens = [torch.randint(0, 50, (8,), generator=dice) for _ in range(64)]
data = [{"input_ids": row, "labels": row} for row in tokens]
callback = {"ddp": None, "paceline": TrainerCallback(), "hook": TrainerCallback(comm_hook="cast(bf16)")}[mode]
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=4,
            logging_steps=1,
            learning_rate=0.01,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
        ),
        train_dataset=data,
        callbacks=[] if callback is None else [callback],
    )
    exchanges = []
    if mode == "paceline":
        begin = callback.on_train_begin

        def counted(*arguments, **named):
            begin(*arguments, **named)
            end = callback.pace.duty.end
            callback.pace.duty.end = lambda: (exchanges.append(1), end())

        callback.on_train_begin = counted
    trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
wrapped = type(trainer.model_wrapped).__name__
if trainer.args.process_index == 0:
    Path(out).write_text(json.dumps({"losses": losses, "exchanges": len(exchanges), "model": wrapped}))
