"""Rules: the vectors that a worker sends, when they may leave, and when results must be back."""

from paceline.menu.menu import Menu

MENU = Menu(
    "rule",
    {
        "grad": ".grad:Grad",
        "atc": ".atc:Atc",
        "awc": ".awc:Awc",
        "server": ".server:Server",
        "exact_diffusion": ".exact_diffusion:ExactDiffusion",
        "gradient_tracking": ".gradient_tracking:GradientTracking",
        "push_sum": ".push_sum:PushSum",
        "push_diging": ".push_diging:PushDiging",
        "diloco": ".diloco:Diloco",
    },
    aliases={"dgd": "awc"},
    package=__name__,
)
