import pytest

from paceline.errors import BadMember, UnknownName
from paceline.strategy import compressors, schedules


def test_positional_and_named_settings_mean_the_same():
    assert schedules.MENU.make("fusion(4)") == schedules.MENU.make("fusion(mb=4)")


def test_a_member_prints_as_it_is_written():
    assert str(schedules.MENU.make("fusion(mb=4)")) == "fusion(mb=4)"
    assert str(schedules.MENU.make("fusion(25)")) == "fusion"
    assert str(compressors.MENU.make("cast(fp16)")) == "cast(to=fp16)"


def test_an_unknown_word_offers_the_nearest_and_the_menu():
    with pytest.raises(UnknownName, match=r"did you mean fusion\? known: auto, bsp, dear, fusion,"):
        schedules.MENU.make("fussion")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fusion(mp=3)", "fusion(mp=3): fusion takes mb; got mp"),
        ("fusion(1, 2)", "got 2 values"),
        ("fusion(1, mb=2)", "mb is given twice"),
        ("fusion(mb=much)", "mb takes a number; got much"),
        ("fusion(mb=0)", "needs more than 0 MB"),
        ("bsp(3)", "bsp takes no settings"),
    ],
)
def test_a_wrong_setting_is_named(text, complaint):
    with pytest.raises(BadMember) as caught:
        schedules.MENU.make(text)
    assert complaint in str(caught.value)


def test_cast_knows_two_targets():
    with pytest.raises(BadMember, match="fp16 or bf16"):
        compressors.MENU.make("cast(int8)")
