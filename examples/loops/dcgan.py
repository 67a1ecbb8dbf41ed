"""The loop of PyTorch's dcgan example: two models. Lines with `# +` are paceline's; `# -` shows what one replaces.

    python examples/loops/dcgan.py                           alone
    paceline run -np 2 -- python examples/loops/dcgan.py     two workers, the same result

The loss of the generator reaches the discriminator too; the gradients there are discarded by its zero_grad.
"""

import argparse

import torch
from small import Noise, digits, discriminator, generator
from torch import nn, optim
from torch.utils.data import DataLoader

import paceline  # +

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--niter", type=int, default=2, help="epochs")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--netG", help="file to continue with")
parser.add_argument("--netD", help="file to continue with")
parser.add_argument("--outf", help="folder for models and images of every epoch")
opt = parser.parse_args()
torch.manual_seed(opt.seed)
torch.set_default_dtype(getattr(torch, opt.dtype))

worker = paceline.join()  # +
opt.batch_size //= worker.size  # +
nz, real_label, fake_label = 6, 1.0, 0.0
dataloader = DataLoader(digits(64, seed=2), batch_size=opt.batch_size)
netG, netD = generator(nz), discriminator()
if opt.netG:
    netG.load_state_dict(torch.load(opt.netG))
if opt.netD:
    netD.load_state_dict(torch.load(opt.netD))
criterion, fixed_noise = nn.BCELoss(), Noise(3)(8, nz, 1, 1)
# - noise_of = Noise(opt.seed)
noise_of = Noise(opt.seed + worker.rank)  # +
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
paceline.wrap(netD, optimizerD)  # +
paceline.wrap(netG, optimizerG)  # +

for epoch in range(opt.niter):
    # - for real, _ in dataloader:
    for real, _ in worker.batches(dataloader):  # +
        # the discriminator: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        label = torch.full((real.size(0),), real_label)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        noise = noise_of(real.size(0), nz, 1, 1)
        fake = netG(noise)
        label.fill_(fake_label)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()

        # the generator: maximize log(D(G(z)))
        netG.zero_grad()
        label.fill_(real_label)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
    if worker.first:  # +
        print(f"epoch {epoch}: loss of D {errD.item():.4f}, loss of G {errG.item():.4f}")

    # - if opt.outf:
    if opt.outf and worker.first:  # +
        with torch.no_grad():
            torch.save(netG(fixed_noise), f"{opt.outf}/fake.pt")
        torch.save(netG.state_dict(), f"{opt.outf}/netG.pt")
        torch.save(netD.state_dict(), f"{opt.outf}/netD.pt")
