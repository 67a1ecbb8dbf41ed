"""Small networks and made-up data for the loops in this folder: nothing to download, seconds on a CPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset


def digits(count: int, seed: int) -> TensorDataset:
    """Return images of 8x8 pixels between 0 and 1, and the class of each: ten patterns under noise."""
    dice = torch.Generator().manual_seed(seed)
    patterns = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    classes = torch.randint(0, 10, (count,), generator=dice)
    noise = torch.rand(count, 1, 8, 8, generator=dice)
    return TensorDataset(0.6 * patterns[classes] + 0.4 * noise, classes)


def text(length: int, words: int, seed: int) -> Tensor:
    """Return a made-up text as numbers of words; a word depends on the one before it."""
    dice = torch.Generator().manual_seed(seed)
    jumps = torch.randint(0, 3, (length,), generator=dice)
    return (jumps + 1).cumsum(0) % words


class Noise:
    """Normal numbers from a generator of their own."""

    def __init__(self, seed: int) -> None:
        self._dice = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._dice)


class Net(nn.Module):
    """A classifier of digits. Its dropout is off: masks of two ranks cannot be those of one process."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc(self.dropout(x.flatten(1))), dim=1)


class VAE(nn.Module):
    """Encoder and decoder of digits around four latent numbers."""

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self.noise = noise
        self.fc1, self.mean, self.spread = nn.Linear(64, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3, self.fc4 = nn.Linear(4, 16), nn.Linear(16, 64)

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.fc1(x.flatten(1)))
        mean, log_variance = self.mean(hidden), self.spread(hidden)
        eps = self.noise(*mean.shape) if self.training else torch.zeros_like(mean)
        return self.decode(mean + eps * torch.exp(0.5 * log_variance)), mean, log_variance


def generator(nz: int) -> nn.Module:
    """Return a network from noise to images. It has no BatchNorm, whose statistics are each rank's own."""
    up = [nn.ConvTranspose2d(nz, 8, 4), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()]
    return nn.Sequential(*up)


def discriminator() -> nn.Module:
    """Return a network from images to the probability that they are real."""
    down = [nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4), nn.Sigmoid(), nn.Flatten(0)]
    return nn.Sequential(*down)


class RNNModel(nn.Module):
    """Encoder, LSTM and decoder; the weights of encoder and decoder are one tensor."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(words, width), nn.LSTM(width, width)
        self.decoder = nn.Linear(width, words)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, hidden = self.rnn(self.encoder(x), hidden)
        return F.log_softmax(self.decoder(output).flatten(0, 1), dim=1), hidden

    def init_hidden(self, columns: int) -> tuple[Tensor, Tensor]:
        zeros = self.decoder.bias.new_zeros(1, columns, self.rnn.hidden_size)
        return zeros, zeros


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A small transformer; token embedding and output layer share their weight."""

    def __init__(self, words: int, block_size: int, width: int = 16, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.wte(x) + self.wpe.weight[: x.size(1)]
        logits = self.lm_head(self.ln_f(self.blocks(hidden)))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())

    def configure_optimizer(self, rate: float, decay: float) -> torch.optim.Optimizer:
        """Return AdamW with weight decay for matrices only."""
        decayed = [p for p in self.parameters() if p.dim() >= 2]
        plain = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
