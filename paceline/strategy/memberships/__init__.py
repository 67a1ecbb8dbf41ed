"""Memberships: the members of the group at each step."""

from paceline.menu.menu import Menu

MENU = Menu("membership", {"fixed": ".fixed:Fixed", "elastic": ".elastic:Elastic"}, package=__name__)
