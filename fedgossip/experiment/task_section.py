"""The section [task]: the problem and its metric."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fedgossip.base.limits import ABOVE_0, MOST, OneOf, Within
from fedgossip.data.named_code import NamesCode
from fedgossip.data.objectives import AS_THE_DATA, CODE, CONVEX, KINDS, LOOP, SPARSE, SUMS
from fedgossip.learning.exchangeable import LORA

TASKS = (AS_THE_DATA, *KINDS, CONVEX, "averaging", "quadratic", SPARSE, LOOP, *SUMS)


class TaskSection(msgspec.Struct, forbid_unknown_fields=True):
    """[task]: the problem and its metric; or a problem with a known answer (pure numpy)."""

    kind: Annotated[str, NamesCode(), OneOf(TASKS, own=True)] = AS_THE_DATA
    """learning: the data of the source; convex: a linear model of it that can be certified, without torch
    (docs/use/convex.md); averaging, quadratic: problems with a known answer, without torch; sparse-logistic: drawn
    clicks, with rows at parameter servers, else whole tables; loop: a training loop of your own (docs/use/own-loop.md);
    `module:Class`: a task of your own, with the methods of LocalTask (docs/use/experiments.md); statistics, evaluation:
    set by `fedgossip data agree` and `fedgossip evaluate`."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Options of a task of your own, beside n, seed and rounds."""
    loss: Annotated[str, CODE] = ""
    """`cross-entropy`, `mse`, `mae`, `huber`, `bce`; `module:function`, of (outputs, labels), the mean over a batch;
    empty: the kind's own, cross-entropy, mse or bce (docs/use/tasks.md).  Convex: `hinge`, `logistic`, `squares`,
    `lasso`."""
    lam: Annotated[float, Within(ABOVE_0)] = 1e-3
    """Convex: weight of lam/2 |w|^2 beside the mean loss; smaller fits closer, and takes more rounds."""
    smooth: Annotated[float, Within(ABOVE_0)] = 0.1
    """Lasso: beside lam |w|_1 stands lam smooth/2 |w|^2, without which nothing could be certified; smaller is nearer
    to the lasso, and takes more rounds."""
    positive: str = ""
    """Convex, hinge and logistic: the class to separate from all others, where the source has more than two."""
    metrics: Annotated[list[str], CODE] = msgspec.field(default_factory=list)
    """`accuracy`, `f1`, `auroc`, `rmse`, `mae`, `r2`, `loss`, `gap`; `module:function?better=lower`, of arrays
    (outputs, labels), with of=model of (model, task), of any task; of a loop or task of your own the names of numbers
    that it reports; the first is the score of reports.  Empty: the kind's own (docs/use/tasks.md)."""
    exchange: Annotated[str, OneOf(("", *LORA))] = ""
    """Loop: how adapters (lora_A, lora_B) travel: `lora`, which is `lora:ffa`; `lora:both`, `lora:product`
    (docs/use/own-loop.md); empty: as the script's join, or else like all parameters."""
    dim: Annotated[int, Within(1, MOST)] = 1
    """Averaging, quadratic: numbers in a vector.  Sparse-logistic: features, each a row of the model."""
    dtype: Annotated[str, OneOf(("float32", "float64"))] = "float32"
    """Averaging, quadratic: their type; learning is always float32."""
    eta: float = 0.1
    """Quadratic: step size."""
    sigma: float = 0.0
    """Quadratic: standard deviation of the gradient noise per coordinate."""
    placement: str = "smooth"
    """Quadratic: order of the targets b_i along the node ids: `smooth`, `alternating`, `random`."""
    examples: Annotated[int, Within(1, 10**7)] = 1000
    """Sparse-logistic: examples of each worker."""
    nonzeros: Annotated[int, Within(1, 10**4)] = 20
    """Sparse-logistic: features of an example."""
