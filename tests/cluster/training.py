"""A script that trains small_cnn for ten steps of SGD and saves its weights, for launchers to start."""

TRAIN = """
import sys, torch, paceline
torch.manual_seed(0)
worker = paceline.join()
workload = paceline.models.MENU.load("small_cnn")()
model = workload.model
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
for step in range(10):
    ids = torch.arange(4) + 4 * worker.rank + 16 * step
    workload.loss(model, workload.batch(ids)).backward()
    pace.step()
if worker.first:
    torch.save(model.state_dict(), sys.argv[1])
    print("trained on", type(worker.comm).__name__, list(worker.comm.placement))
worker.close()
"""
