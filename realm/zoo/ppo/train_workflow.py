"""How experience is made: the loop that all of the zoo share."""

from realm.zoo.gym import workflow

__all__ = ["workflow"]
