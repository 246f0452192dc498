"""Models by name, users' models, and saved models that predict.

It imports `one_model`, `data` and torch.  `architectures` has the named models as sizes, without torch; `models` builds
them; `model_files` writes a run's model, and `loaded_model` predicts with it.
"""
