"""Who is in the group for this step."""

from paceline.menu.menu import Menu

MENU = Menu("membership", {"fixed": ".fixed:Fixed"}, package=__name__)
