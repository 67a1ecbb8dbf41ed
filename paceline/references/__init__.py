"""What we race against that is not ours."""

from paceline.menu import Menu

MENU = Menu("reference", {"ddp": "paceline.references.ddp:Ddp", "limit": "paceline.references.limit:Limit"})
