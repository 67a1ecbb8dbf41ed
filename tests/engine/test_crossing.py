"""A step that crosses: what goes on while the next forward runs."""

from paceline.engine.crossing import CrossingEngine


def test_a_layer_whose_parameters_are_there_lets_the_others_make_their_way():
    """Otherwise nothing would be sent, or heard, from the first layer to the first that has to wait."""
    engine, advanced = CrossingEngine.__new__(CrossingEngine), []
    engine.advance = lambda: advanced.append(True)
    engine._covers, engine._back = [[0]], {0}
    engine.need([0])
    assert advanced
