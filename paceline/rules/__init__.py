"""What leaves a worker, when it may leave and when it must be back."""

from paceline.menu import Menu

MENU = Menu(
    "rule",
    {
        "grad": "paceline.rules.grad:Grad",
        "atc": "paceline.rules.atc:Atc",
        "awc": "paceline.rules.awc:Awc",
        "server": "paceline.rules.server:Server",
        "exact_diffusion": "paceline.rules.exact_diffusion:ExactDiffusion",
        "gradient_tracking": "paceline.rules.gradient_tracking:GradientTracking",
        "push_sum": "paceline.rules.push_sum:PushSum",
        "diloco": "paceline.rules.diloco:Diloco",
    },
    aliases={"dgd": "awc"},
)
