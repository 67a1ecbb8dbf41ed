"""Computes: run the network itself, or replay a profile of it by waiting.

--compute real
--compute 'replay(profile.json, scale=2)'     twice the profiled times
--compute 'replay(resnet50, step=0.3)'        a listed model, layers by FLOPs
"""

from paceline.menu.menu import Menu

MENU = Menu("compute", {"real": ".real:Real", "replay": ".replay:Replay"}, package=__name__)
