// What the parts of llama-lowkey-calibrate share: failures as exceptions, files, results of lowkey.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_LOWKEY_TOOLS_H
#define LLAMA_LOWKEY_TOOLS_H

#include <llama.h>
#include <lowkey/base.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

using Tokens = std::vector<llama_token>;

[[noreturn]] inline void fail(const std::string &sentence) { throw std::runtime_error(sentence); }

inline void check(lk_status status) {
    char sentence[1024] = "";
    if (status != LK_OK && lk_last_error(sentence, sizeof sentence, nullptr) == LK_OK)
        fail(sentence);
    if (status != LK_OK)
        fail(lk_status_name(status));
}
inline void check(const char *sentence) {
    if (sentence != nullptr)
        fail(sentence);
}

inline std::string read_file(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file && !file.eof())
        fail(path + ": cannot be read");
    return text;
}

// The file has its earlier bytes until it has all of the new ones.
inline void write_file(const std::string &path, const std::string &bytes) {
    std::ofstream file(path + ".new", std::ios::binary);
    const bool is_written = static_cast<bool>(file << bytes) && static_cast<bool>(file.flush());
    file.close();
    if (!is_written || std::rename((path + ".new").c_str(), path.c_str()) != 0)
        fail(path + ": cannot be written");
}

// What a call of lowkey writes: once for the number of bytes, then for them.
template <typename Call, typename... Arguments>
std::string bytes_of(Call call, Arguments... arguments) {
    size_t n_bytes = 0;
    check(call(arguments..., nullptr, 0, &n_bytes));
    std::string bytes(n_bytes, '\0');
    check(call(arguments..., bytes.data(), bytes.size(), &n_bytes));
    return bytes;
}

inline Tokens tokens_of(const llama_vocab *vocab, const std::string &text) {
    const int32_t n_bytes = static_cast<int32_t>(std::min<size_t>(text.size(), INT32_MAX));
    Tokens tokens(text.size() + 1);
    const int32_t n_tokens =
        llama_tokenize(vocab, text.data(), n_bytes, tokens.data(),
                       static_cast<int32_t>(tokens.size()), /*add_special=*/false, false);
    tokens.resize(static_cast<size_t>(std::max(n_tokens, 0)));
    return tokens;
}

#endif
