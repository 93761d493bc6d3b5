// The host without the library: what a hostile file comes to, and the bytes of the tasks.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "llama/safetensors.h"
#include "llama/tasks.h"

namespace {

int n_failed = 0;

void expect(bool condition, const std::string &what) {
    if (condition)
        return;
    std::printf("FAIL %s\n", what.c_str());
    ++n_failed;
}

std::string file_of(const std::string &header, const std::string &data) {
    std::string bytes;
    for (std::size_t i = 0; i < 8; ++i) {
        bytes.push_back(static_cast<char>((std::uint64_t{header.size()} >> (8 * i)) & 0xff));
    }
    return bytes + header + data;
}

// Empty when the file is read, else the sentence.
std::string reading(const std::string &bytes) {
    const char *const path = "host_test.safetensors";
    std::ofstream(path, std::ios::binary) << bytes;
    std::string sentence;
    try {
        const llama::SafetensorsFile file(path);
        for (const llama::Tensor &tensor : file.tensors()) {
            if (tensor.dtype == "F16" || tensor.dtype == "F32")
                (void)llama::to_floats(tensor);
        }
    } catch (const llama::Error &error) {
        sentence = error.what();
    }
    std::remove(path);
    return sentence;
}

const char kGood[] =
    R"({"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"__metadata__":{"k":"v"}})";

void refuse_hostile_files() {
    const std::string data(12, '\x3c');
    const std::string good = file_of(kGood, data);
    expect(reading(good).empty(), "a good file is read: " + reading(good));
    for (std::size_t n = 0; n < good.size(); ++n) {
        expect(!reading(good.substr(0, n)).empty(), "cut to " + std::to_string(n) + " bytes");
    }
    expect(!reading(good + "x").empty(), "a byte after the data");
    const char *const headers[] = {
        R"([])",
        R"({"a":3})",
        R"({"a":{"dtype":"F16","shape":[2,2]}})",
        R"({"a":{"dtype":"F17","shape":[2,2],"data_offsets":[0,12]}})",
        R"({"a":{"dtype":"U8","shape":[-12],"data_offsets":[0,12]}})",
        R"({"a":{"dtype":"U8","shape":"12","data_offsets":[0,12]}})",
        R"({"a":{"dtype":"U8","shape":[12],"data_offsets":[0,13]}})",
        R"({"a":{"dtype":"U8","shape":[12],"data_offsets":[12,0]}})",
        R"({"a":{"dtype":"U8","shape":[12],"data_offsets":[0]}})",
        R"({"a":{"dtype":"U8","shape":[11],"data_offsets":[1,12]}})",
        R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,12]}})",
        R"({"a":{"dtype":"U8","shape":[12],"data_offsets":[0,12]},"b":{"dtype":"U8","shape":[12],"data_offsets":[0,12]}})",
        R"({"__metadata__":{"k":1},"a":{"dtype":"U8","shape":[12],"data_offsets":[0,12]}})"};
    for (const char *header : headers) {
        expect(!reading(file_of(header, data)).empty(), std::string("refused: ") + header);
    }
}

// Every flipped header byte is refused or read; it never reads outside the file.
void flip_header_bytes() {
    const std::string good = file_of(kGood, std::string(12, '\x3c'));
    for (std::size_t i = 0; i < good.size() - 12; ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
            (void)reading(bad);
        }
    }
}

std::size_t count(const std::string &text, const std::string &part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
        ++n;
    return n;
}

void check_tasks() {
    const llama::Material material{"Some words of text, The code of nobody is here.\nAnd a line.\n",
                                   {}};
    for (const llama::Task &task : llama::all_tasks()) {
        for (const std::size_t n_tokens : {1500u, 4096u}) {
            const llama::Document one = llama::make_document(task, n_tokens, 5, material);
            const llama::Document two = llama::make_document(task, n_tokens, 5, material);
            const llama::Document other = llama::make_document(task, n_tokens, 6, material);
            const std::string name = std::string(task.name) + " at " + std::to_string(n_tokens);
            expect(one.context == two.context, name + ": the same seed, the same document");
            expect(one.context != other.context, name + ": another seed, another document");
            expect(one.context.size() == n_tokens, name + ": its length");
            expect(one.context[0] == '\0' && count(one.context, std::string(1, '\0')) == 1,
                   name + ": byte 0 comes first and once");
            for (const llama::Question &question : one.questions) {
                expect(question.prompt[0] == '\n', name + ": a question's begin");
                expect(!question.items.empty() || question.answer.back() == '.',
                       name + ": an answer's end");
            }
        }
    }
}

void check_needles() {
    const llama::Material material{"Some words of text, The code of nobody is here.\nAnd a line.\n",
                                   {}};
    const llama::Document document =
        llama::make_document(*llama::find_task("needle"), 4096, 3, material);
    expect(document.questions.size() == 24, "24 needles at 4096 tokens");
    expect(count(document.context, "The code of ") == 24, "no needle but the planted ones");
    for (const llama::Question &question : document.questions) {
        expect(count(document.context, question.prompt.substr(1) + question.answer) == 1,
               "every needle is planted once");
    }
    const llama::Material one_word{std::string(64, 'x'), {}};
    const llama::Document wrapped =
        llama::make_document(*llama::find_task("needle"), 1024, 3, one_word);
    expect(wrapped.questions.size() == 6 && wrapped.context.size() == 1024,
           "needles in a text without spaces");
    const llama::Document trace =
        llama::make_document(*llama::find_task("trace"), 4096, 3, material);
    std::set<std::string> prompts;
    for (const llama::Question &question : trace.questions) {
        expect(prompts.insert(question.prompt).second, "a chain has one question");
        const std::string next = question.answer.substr(0, question.answer.find(" :="));
        expect(count(trace.context, question.prompt.substr(3) + next + ".\n") == 1,
               "the first hop is a line");
    }
}

// Items follow each other up to the end; `between` is what may lie before one.
std::vector<std::string> items_of(const llama::Question &question, const std::string &between) {
    std::vector<std::string> texts;
    std::size_t at = 0;
    for (const llama::Item &item : question.items) {
        const std::string gap = question.answer.substr(at, item.begin - at);
        expect(gap.empty() || gap == between, "between items: \"" + gap + "\"");
        texts.push_back(question.answer.substr(item.begin, item.end - item.begin));
        at = item.end;
    }
    expect(at == question.answer.size(), "the last item ends the answer");
    return texts;
}

void check_long_answers() {
    const llama::Material material{"Some words of text.\nAnd a line.\n", {}};
    const llama::Document walk =
        llama::make_document(*llama::find_task("walk-2048"), 1024, 3, material);
    std::string from = walk.questions[0].prompt.substr(3);
    std::set<std::string> names;
    const std::vector<std::string> steps = items_of(walk.questions[0], "");
    for (const std::string &step : steps) {
        const std::string name = step.substr(0, step.find(' '));
        expect(step == name + " := ", "an item of a walk is a name with its mark");
        expect(count(walk.context, "\n" + from + name + ".\n") == 1, "each hop is a line");
        from = step;
        names.insert(name);
    }
    expect(names.size() < steps.size() && count(walk.context, " := ") == names.size(),
           "a walk goes around all lines");
    const llama::Document recital =
        llama::make_document(*llama::find_task("recite-2048"), 1024, 3, material);
    std::string words;
    for (const std::string &word : items_of(recital.questions[0], recital.questions[0].prompt))
        words += word;
    const std::string list = words.substr(0, words.find('.') + 1);
    expect(list.size() == 513 && words == list + list + list + list, "a list four times in a row");
    expect(count(recital.context, "\nList: " + list + "\n") == 1, "that is in the context");
}

}  // namespace

int main() {
    refuse_hostile_files();
    flip_header_bytes();
    check_tasks();
    check_needles();
    check_long_answers();
    std::printf("%s\n", n_failed == 0 ? "ok" : "failed");
    return n_failed == 0 ? 0 : 1;
}
