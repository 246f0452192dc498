"""Models by name, a user's own, and saved models that predict.

It imports `one_model`, `data` and torch.  `architectures` has the named models as sizes, without torch; `models`
builds them with the same first weights for the same seed.  After a run `model_files` writes a folder, and
`loaded_model` answers from it: examples as they are read go in, predictions come out.
"""
