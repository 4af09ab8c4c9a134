"""How experience is made: the loop that all of the zoo share."""

from realm.zoo.ppo.train_workflow import workflow

__all__ = ["workflow"]
