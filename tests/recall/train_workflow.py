from realm.zoo.cartpole.train_workflow import workflow

__all__ = ["workflow"]
