# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the site, which build.py has collected the pages of."""
import os
import re
import sys
import types

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.domains.c import CDomain

project = 'lowkey'
version = release = os.environ['LOWKEY_SITE_VERSION']
extensions = ['myst_parser', 'sphinx.ext.autodoc']
myst_heading_anchors = 6
# A drawing in a guide is no program.
highlight_language = 'none'
html_theme = 'furo'
html_title = f'lowkey {release}'
html_static_path = ['_static']
html_css_files = ['site.css']
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False
html_last_updated_fmt = None
html_theme_options = {'navigation_with_keys': True}
pygments_dark_style = 'github-dark'

sys.path.insert(0, os.environ['LOWKEY_SITE_PYTHON'])
sys.dont_write_bytecode = True
autodoc_mock_imports = ['lm_eval', 'numpy', 'safetensors', 'sentence_transformers', 'torch', 'tqdm', 'transformers']
# Of a class below a decorator that is replaced, nothing would be left.
registry = sys.modules['lm_eval.api.registry'] = types.ModuleType('lm_eval.api.registry')
registry.register_model = lambda *names: lambda model: model
autodoc_member_order = 'bysource'
autodoc_typehints = 'signature'
autodoc_default_options = {'members': True}
add_module_names = False

PARAMETER = re.compile(r'^(\s*)(\*{0,2}\w+(?:(?:,| \.\.\.) \w+)*)  +(\S.*)$')
C_NAME = re.compile(r'(lk_\w+(?:\.\w+)?|LK_\w+)(?:\(\))?')


def parameters(app, what, name, thing, options, lines):
    """Docstrings of calls state a parameter as "name  text", like the headers."""
    if what == 'module':
        return
    for index, line in enumerate(lines):
        match = PARAMETER.match(line)
        if match:
            # Before a blank the field's argument would be a type.
            lines[index] = f'{match[1]}:param {match[2].replace(" ", "")}: {match[3]}'


def link_c_names(app, doctree):
    """`lk_step_begin()` in a guide leads to its declaration."""
    for literal in list(doctree.findall(nodes.literal)):
        match = C_NAME.fullmatch(literal.astext())
        if match and not isinstance(literal.parent, (nodes.reference, pending_xref)):
            link = pending_xref('', refdomain='c', reftype='data', reftarget=match[1], refexplicit=True, refwarn=False,
                                refdoc=app.env.docname)
            literal.replace_self(link)
            link += literal


def without_parameters(domain, get_objects=CDomain.get_objects):
    """A search finds functions, and not each of their parameters."""
    return (entry for entry in get_objects(domain) if entry[2] != 'functionParam')


def setup(app):
    CDomain.get_objects = without_parameters
    app.connect('autodoc-process-docstring', parameters)
    app.connect('doctree-read', link_c_names)
