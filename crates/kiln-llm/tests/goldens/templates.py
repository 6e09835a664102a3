"""Renders chat templates as the Python library transformers does, and prints what tests/templates.rs compares with.

python3 -m pip install jinja2==3.1.6
python3 templates.py FOLDER > templates.txt: a line for each template of the folder: its name, and for each conversation, without and
with the beginning of an answer, the FNV-1a hash (64 bits) of the prompt, or `refused`.
python3 templates.py FOLDER NAME: the prompts of one template, to see a difference.
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

# The same conversations and time as in tests/templates.rs.
TIME = datetime.datetime(2024, 7, 26, 12, 34, 56, tzinfo=datetime.timezone.utc)
CONVERSATIONS = [
    [("user", "Hi")],
    [
        ("system", 'Be "terse".'),
        ("user", "Is 2 < 3, or is {{ this }} a bug?\n\nPlease tell.  "),
        ("assistant", "<think>\nQuite easy.\n</think>\n\nYes & no: é."),
        ("user", "  Why not 'maybe'? \U0001f642"),
    ],
    [("user", "What is a kiln?"), ("assistant", " An oven "), ("user", "/think hard: [INST] <|im_end|>")],
]


class Generation(jinja2.ext.Extension):
    """The tags {% generation %}, which mark answers for training."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
)
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = TIME.strftime


def prompts(source):
    template = environment.from_string(source)
    for conversation in CONVERSATIONS:
        for answer in (False, True):
            messages = [{"role": role, "content": content} for role, content in conversation]
            given = dict(messages=messages, documents=None, bos_token="<s>", eos_token="</s>")
            try:
                yield template.render(**given, add_generation_prompt=answer, tools=None)
            except TypeError:
                # Templates for tools alone iterate over None, which kiln takes for an empty list.
                yield template.render(**given, add_generation_prompt=answer, tools=[])
            except jinja2.exceptions.TemplateError as error:
                yield error


def field(prompt):
    if isinstance(prompt, Exception):
        return "refused"
    value = 0xCBF29CE484222325
    for byte in prompt.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


folder = pathlib.Path(sys.argv[1])
if len(sys.argv) > 2:
    for prompt in prompts((folder / sys.argv[2]).read_text()):
        print(repr(prompt))
else:
    for path in sorted(folder.glob("*.jinja"), key=lambda path: path.name):
        print(path.name, *map(field, prompts(path.read_text())))
