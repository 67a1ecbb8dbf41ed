"""Who is in the group for this step."""

from paceline.menu import Menu

MENU = Menu("membership", {"fixed": "paceline.memberships.fixed:Fixed"})
