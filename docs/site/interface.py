# SPDX-License-Identifier: Apache-2.0
"""Pages of the C interface as reStructuredText, one for each header in the order of its lines, from Doxygen's XML."""

from __future__ import annotations

import pathlib
import re
import textwrap
import xml.etree.ElementTree as ElementTree

NAME = re.compile(r'\b(lk_\w+(?:\.\w+)?|LK_\w+)(\(\))?')
SPECIAL = re.compile(r'([*`|\\]|_(?!\w))')
IGNORED = ('LOWKEY_',)


def text_of(node: ElementTree.Element | None) -> str:
    return ' '.join(''.join(node.itertext()).split()) if node is not None else ''


class Interface:
    """The declarations of all headers."""

    def __init__(self, xml: pathlib.Path):
        self.xml = xml
        self.headers: dict[str, ElementTree.Element] = {}
        self.names: set[str] = set()
        for path in sorted(xml.glob('*_8h.xml')):
            compound = ElementTree.parse(path).getroot().find('compounddef')
            self.headers[text_of(compound.find('compoundname'))] = compound
            for member in self.members(compound):
                self._learn(member)

    def members(self, compound: ElementTree.Element) -> list[ElementTree.Element]:
        """What a header declares, in its order."""
        structs = [ElementTree.parse(self.xml / f'{inner.get("refid")}.xml').getroot().find('compounddef')
                   for inner in compound.findall('innerclass')]
        found = [*compound.iter('memberdef'), *structs]
        return sorted((member for member in found if not self._name(member).startswith(IGNORED)),
                      key=lambda member: int(member.find('location').get('line')))

    @staticmethod
    def _name(member: ElementTree.Element) -> str:
        return text_of(member.find('compoundname' if member.tag == 'compounddef' else 'name'))

    def _learn(self, member: ElementTree.Element) -> None:
        name = self._name(member)
        self.names.add(name)
        self.names.update(text_of(value.find('name')) for value in member.findall('enumvalue'))
        if member.tag == 'compounddef':
            self.names.update(f'{name}.{text_of(field.find("name"))}' for field in member.iter('memberdef'))

    def page(self, header: str) -> str:
        compound = self.headers[header]
        title = f'lowkey/{header}'
        parts = [f'{title}\n{"=" * len(title)}', self._comment(compound)]
        parts += [self._declaration(member) for member in self.members(compound)]
        return '\n\n'.join(parts) + '\n'

    def _declaration(self, member: ElementTree.Element) -> str:
        if member.tag == 'compounddef':
            fields = [self._entry('member', definition(field).split(f'{self._name(member)}::')[0] + field_name(field),
                                  self._comment(field)) for field in member.iter('memberdef')]
            return self._entry('struct', self._name(member), '\n\n'.join([self._comment(member), *fields]))
        kind = member.get('kind')
        if kind == 'enum':
            values = [self._entry('enumerator', f'{text_of(value.find("name"))} {text_of(value.find("initializer"))}',
                                  self._comment(value)) for value in member.findall('enumvalue')]
            return '\n\n'.join([self._comment(member), *values])
        if kind == 'define':
            value = text_of(member.find('initializer'))
            return self._entry('macro', self._name(member), '\n\n'.join(
                [f'``{value}``' if value else '', self._comment(member)]))
        if kind == 'typedef':
            opaque = re.fullmatch(r'struct (\w+) \1', definition(member))
            return self._entry('type', opaque[1] if opaque else definition(member), self._comment(member))
        return self._entry('function', definition(member), self._comment(member))

    @staticmethod
    def _entry(kind: str, signature: str, body: str) -> str:
        return f'.. c:{kind}:: {signature.strip()}\n\n{textwrap.indent(body, "   ")}'.rstrip()

    def _comment(self, node: ElementTree.Element) -> str:
        parts = [self._blocks(node.find(f'{kind}description')) for kind in ('brief', 'detailed')]
        return '\n\n'.join(part for part in parts if part)

    def _blocks(self, node: ElementTree.Element | None) -> str:
        """Paragraphs, lists and texts that are shown as they are, each after an empty line."""
        blocks, words = [], []

        def flush() -> None:
            paragraph = ' '.join(''.join(words).split())
            blocks.append(paragraph)
            words.clear()

        def add(node: ElementTree.Element) -> None:
            words.append(self._linked(node.text or ''))
            for child in node:
                block = self._block(child)
                if child.tag == 'para':
                    flush()
                    add(child)
                    flush()
                elif block is not None:
                    flush()
                    blocks.append(block)
                else:
                    words.append(self._inline(child))
                words.append(self._linked(child.tail or ''))

        if node is not None:
            add(node)
            flush()
        return '\n\n'.join(block for block in blocks if block)

    def _block(self, node: ElementTree.Element) -> str | None:
        if node.tag == 'verbatim':
            shown = re.sub(r'^ ?\* ?', '', node.text or '', flags=re.M)
            return '.. code-block:: none\n\n' + textwrap.indent(textwrap.dedent(shown).rstrip(), '   ')
        if node.tag == 'itemizedlist':
            return '\n'.join('- ' + textwrap.indent(self._blocks(item), '  ').strip() for item in node)
        if node.tag == 'parameterlist':
            return '\n'.join(f':param {text_of(name)}: ' + textwrap.indent(
                self._blocks(item.find('parameterdescription')), '   ').strip()
                for item in node for name in item.iter('parametername'))
        return None

    def _inline(self, node: ElementTree.Element) -> str:
        text = text_of(node)
        if node.tag == 'ref':
            return self._linked(text)
        if node.tag in ('bold', 'computeroutput'):
            return f'**{text}**' if node.tag == 'bold' else f'``{text}``'
        raise ValueError(f'a comment of the headers has a <{node.tag}>, which interface.py does not know')

    def _linked(self, text: str) -> str:
        """Text in which every name of the interface leads to its declaration."""
        parts, end = [], 0
        for match in NAME.finditer(text):
            if match[1] not in self.names:
                continue
            link = f':c:data:`{match[0]} <{match[1]}>`'
            parts += [SPECIAL.sub(r'\\\1', text[end:match.start()]), joint(text, match.start() - 1), link,
                      joint(text, match.end())]
            end = match.end()
        return ''.join([*parts, SPECIAL.sub(r'\\\1', text[end:])])


def joint(text: str, index: int) -> str:
    """A role ends at white space: an escaped one is not shown."""
    return '\\ ' if 0 <= index < len(text) and not text[index].isspace() else ''


def field_name(field: ElementTree.Element) -> str:
    return text_of(field.find('name')) + text_of(field.find('argsstring'))


def definition(member: ElementTree.Element) -> str:
    """A declaration without its semicolon."""
    arguments = text_of(member.find('argsstring')) if member.get('kind') == 'function' else ''
    return re.sub(r'^typedef ', '', text_of(member.find('definition'))) + arguments
