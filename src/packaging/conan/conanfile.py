# SPDX-License-Identifier: Apache-2.0
"""Conan 2's recipe of lowkey. conandata.yml, which a release adds, has the address and the sum of the source archive."""

from __future__ import annotations

import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd, stdcpp_library
from conan.tools.files import copy, get, rmdir
from conan.tools.gnu import PkgConfigDeps
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain

required_conan_version = '>=2.4'


class Lowkey(ConanFile):
    name = 'lowkey'
    version = '0.2.0'
    description = 'Low-bit key/value cache for language models: packed pages of 1 to 16 bits, and attention on them'
    license = 'Apache-2.0'
    homepage = 'https://example.org/lowkey'
    url = 'https://example.org/lowkey'
    topics = ('llm', 'attention', 'kv-cache', 'quantization')
    package_type = 'library'
    settings = 'os', 'arch', 'compiler', 'build_type'
    options = {'shared': [True, False], 'fPIC': [True, False], 'cuda': [True, False], 'vulkan': [True, False]}
    default_options = {'shared': False, 'fPIC': True, 'cuda': False, 'vulkan': False}
    implements = ['auto_shared_fpic']

    def layout(self):
        basic_layout(self, src_folder='src')

    def requirements(self):
        # Headers of both are used, inside the library alone.
        self.requires('nlohmann_json/[>=3.10 <4]', visible=False)
        self.requires('xxhash/[>=0.8 <1]', visible=False)

    def build_requirements(self):
        self.tool_requires('meson/[>=0.61.2]')
        self.tool_requires('ninja/[>=1.10 <2]')
        self.tool_requires('pkgconf/[>=1.8]')

    def validate(self):
        if self.settings.os == 'Windows':
            raise ConanInvalidConfiguration('lowkey does not build on Windows')
        if self.options.cuda and not self.options.shared:
            raise ConanInvalidConfiguration('cuda=True needs shared=True: the archive has no CUDA runtime')
        if self.settings.compiler.get_safe('cppstd'):
            check_min_cppstd(self, 17)

    def source(self):
        get(self, **self.conan_data['sources'][self.version], strip_root=True)

    def generate(self):
        toolchain = MesonToolchain(self)
        for name in ('cli', 'examples', 'tests'):
            toolchain.project_options[name] = 'disabled'
        for name in ('cuda', 'vulkan'):
            toolchain.project_options[name] = 'enabled' if self.options.get_safe(name) else 'disabled'
        toolchain.generate()
        PkgConfigDeps(self).generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        copy(self, 'LICENSE', self.source_folder, os.path.join(self.package_folder, 'licenses'))
        Meson(self).install()
        # Conan describes the package to CMake and pkg-config itself.
        rmdir(self, os.path.join(self.package_folder, 'lib', 'cmake'))
        rmdir(self, os.path.join(self.package_folder, 'lib', 'pkgconfig'))
        if self.options.shared:
            os.unlink(os.path.join(self.package_folder, 'lib', 'liblowkey.a'))

    def package_info(self):
        self.cpp_info.libs = ['lowkey']
        self.cpp_info.set_property('cmake_file_name', 'lowkey')
        self.cpp_info.set_property('cmake_target_name', 'lowkey::lowkey')
        self.cpp_info.set_property('pkg_config_name', 'lowkey')
        if not self.options.shared:
            self.cpp_info.system_libs = [stdcpp_library(self)] if stdcpp_library(self) else []
            if self.settings.os in ('Linux', 'FreeBSD'):
                self.cpp_info.system_libs += ['m', 'dl', 'pthread']
