"""Computes: run the network itself, or replay a profile of it by waiting.

--compute real
--compute 'replay(profile.json, scale=2)'     twice the profiled times
"""

from paceline.menu.menu import Menu

MENU = Menu("compute", {"real": ".real:Real", "replay": ".replay:Replay"}, package=__name__)
