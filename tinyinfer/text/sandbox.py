"""Where chat templates run: Jinja with what transformers gives them, and bounds on what a hostile one can take.

Templates come with models, from anyone. Jinja's immutable sandbox keeps them from Python's internals and from changing
what they are given. Against templates that never end or grow without end, these are bounded for one rendering:

    loop rounds and calls       STEPS in all (a call costs CALL of them), so nested loops and recursive macros end
    range(...)                  100 000 numbers (Jinja's own bound)
    texts and lists             SIZE characters or items, where they are assigned, passed, added, repeated or printed
    whole numbers               BITS bits

Not bounded: the time a single round may take (a filter that sorts a long list), and a text blown up within a single
expression by a filter or a format width. Importing this module imports jinja2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

STEPS = 2_000_000
CALL = 10
SIZE = 1 << 24
BITS = 10_000

_steps_left: ContextVar[int] = ContextVar("steps_left", default=STEPS)


class Refused(jinja2.TemplateError):
    """The template itself called `raise_exception`."""


class TooMuch(jinja2.TemplateError):
    """The template went past a bound."""


def run(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render within the bounds. Raises whatever the template leads to, `TooMuch` past a bound."""
    token = _steps_left.set(STEPS)
    try:
        chunks, size = [], 0
        for chunk in template.generate(**variables):
            chunks.append(chunk)
            size += len(chunk)
            if size > SIZE:
                raise TooMuch(f"it writes more than {SIZE} characters")
        return "".join(chunks)
    finally:
        _steps_left.reset(token)


def _spend(steps: int) -> None:
    left = _steps_left.get() - steps
    if left < 0:
        raise TooMuch("it loops or calls without end, or for too long")
    _steps_left.set(left)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 0


def _sized(value: Any) -> Any:
    if _size(value) > SIZE:
        raise TooMuch(f"it makes a text or list of more than {SIZE}")
    return value


@jinja2.pass_context  # depends on the rendering under way: keeps Jinja from working it out while compiling
def _counted(context: Any, items: Any) -> Any:
    """What a loop runs over, its length paid for."""
    if not hasattr(items, "__len__") and hasattr(items, "__iter__"):
        items = list(items)
    if hasattr(items, "__len__"):
        _spend(len(items))
    return items


class _Bounded(NodeTransformer):
    """Puts `_counted` around what every loop runs over, `_sized` around what every `set` assigns."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = self._filter(node, node.iter, "counted")
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:
        self.generic_visit(node)
        node.node = self._filter(node, node.node, "sized")
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        node.filter = self._filter(node, node.filter, "sized")
        return node

    @staticmethod
    def _filter(at: nodes.Node, value: nodes.Expr | None, name: str) -> nodes.Filter:
        return nodes.Filter(value, name, [], [], None, None, lineno=at.lineno, environment=at.environment)


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:
        super().visit_Template(_Bounded().visit(node), frame)


class Generation(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}`: marks what the assistant wrote, for training; prints its body."""

    tags = {"generation"}  # noqa: RUF012  Jinja reads a plain set

    def parse(self, parser: Any) -> nodes.Node:
        """Read the block; names that are set in it stay in it."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the whitespace rules, extensions, filters and functions that chat templates count on."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self):
        """No arguments: there is one kind."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])
        self.filters |= {"tojson": tojson, "counted": _counted, "sized": _sized}
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
        self.globals |= {"dict": _Dict(), "namespace": _Namespace}
        del self.globals["lipsum"]  # placeholder text of any length

    def call(self, context: Any, obj: Callable, /, *args: Any, **kwargs: Any) -> Any:
        """Call for a template; a call costs steps, and so does each round of a loop entered by `loop(...)`."""
        entered = len(args[0]) if isinstance(obj, LoopContext) and args and hasattr(args[0], "__len__") else 0
        _spend(CALL + entered)
        for value in (*args, *kwargs.values()):
            _sized(value)
            if isinstance(value, int) and abs(value) > SIZE and isinstance(getattr(obj, "__self__", None), str):
                raise TooMuch(f"it pads a text to more than {SIZE} characters")
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Add, multiply or raise for a template, unless the result would be too large."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > BITS:
                raise TooMuch(f"it makes a number of more than {BITS} bits")
        elif operator == "+" and _size(left) + _size(right) > SIZE:
            raise TooMuch(f"it makes a text or list of more than {SIZE}")
        elif operator == "*":
            times = next((value for value in (left, right) if isinstance(value, int)), 0)
            if max(_size(left), _size(right)) * times > SIZE:
                raise TooMuch(f"it makes a text or list of more than {SIZE}")
        return super().call_binop(context, operator, left, right)


def raise_exception(message: Any) -> None:
    """Refuse the conversation, in the template's own words."""
    raise Refused(str(message))


def strftime_now(format: str) -> str:
    """The local time now, written as `format` says."""
    return datetime.now().strftime(format)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON text; unlike Jinja's own filter it leaves `<`, `>`, `&` and letters outside ASCII as they are."""
    if isinstance(indent, int) and indent > 64:
        raise TooMuch(f"it indents JSON by {indent} spaces")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)` without the type itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable, value: Any = None) -> dict:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """A namespace that takes no names beginning with an underscore, as transformers' does not."""

    def __init__(*args: Any, **kwargs: Any):  # no named parameter, so that namespace(self=...) works
        self, args = args[0], args[1:]
        Namespace.__init__(self)
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace takes no name with an underscore first, found {name!r}")
        super().__setitem__(name, value)
