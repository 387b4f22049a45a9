"""The surface that scikit-learn asks of an estimator, without importing scikit-learn: 0.9 s of a first result."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from reprlib import Repr
from typing import Any

from typing_extensions import Self

from graph_emb.core.errors import unknown_name

_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 30
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 200


class Transformer:
    """A transformer to scikit-learn, by its protocol instead of by its base classes.

    ``clone``, pipelines, searches and ``check_estimator`` use these methods and no class (scikit-learn's guide
    "Developing scikit-learn estimators"). A subclass declares its parameters as keyword arguments of ``__init__``,
    which keeps each as an attribute of its name.

    Example:
        >>> class Scaled(Transformer):
        ...     def __init__(self, *, factor=1.0):
        ...         self.factor = factor
        >>> Scaled().set_params(factor=2.0)
        Scaled(factor=2.0)
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every parameter's value by its name; ``deep`` adds nothing, as no parameter is an estimator."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters.

        Raises:
            ConfigError: a name that is no parameter; nothing is changed.
        """
        known = self._parameters()
        for name in params:
            if name not in known:
                raise unknown_name(f"setting of {type(self).__name__}", name, known)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={said}' for name, said in self._changed().items())})"

    def __sklearn_tags__(self) -> Any:
        """Called by scikit-learn (1.6 and later) only, which is imported then."""
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags())

    def _changed(self) -> dict[str, str]:
        """The parameters that are not their defaults, with short reprs of their values."""
        known = self._parameters()
        values = {name: getattr(self, name) for name in known}
        return {name: _SHORT.repr(value) for name, value in values.items() if repr(value) != repr(known[name].default)}

    @classmethod
    def _parameters(cls) -> Mapping[str, Parameter]:
        return signature(cls).parameters
