// Steps: what they take, their layers, and what a commit keeps.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "machine.h"

namespace stateful {

namespace {

// Rows of a step in memory of the device, [token][head][head_dim].
class Rows {
  public:
    Rows(const rig_device &device, const std::vector<float> &values, uint32_t n_heads,
         uint32_t head_dim)
        : device_(device), bytes_(values.size() * sizeof(float)), memory_(device.alloc(bytes_)) {
        require(memory_);
        device_.put(memory_, values.data(), bytes_);
        require(lk_tensor_init(&tensor_, sizeof tensor_) == LK_OK);
        tensor_.dtype = LK_F32;
        tensor_.memory = device.memory;
        tensor_.data = memory_;
        tensor_.token_stride = int64_t{n_heads} * head_dim;
        tensor_.head_stride = head_dim;
    }
    ~Rows() { device_.release(memory_); }
    Rows(const Rows &) = delete;
    Rows &operator=(const Rows &) = delete;

    const lk_tensor *tensor() const { return &tensor_; }
    // After the work on the device's queue.
    void read(std::vector<float> *values) const { device_.get(values->data(), memory_, bytes_); }

  private:
    const rig_device &device_;
    const size_t bytes_;
    void *const memory_;
    lk_tensor tensor_;
};

}  // namespace

lk_status Machine::run_layer(uint32_t layer, uint32_t n_tokens, std::vector<NewTokens> *parts,
                             bool *right) {
    const lk_layer &own = layers_[layer];
    const bool reads = !lk::owns_kv(own);
    const uint32_t value_dim = lk::value_dim_of(own);
    const size_t width = size_t{own.n_query_heads} * own.head_dim;
    std::vector<float> keys(size_t{n_tokens} * own.n_kv_heads * own.head_dim),
        values(size_t{n_tokens} * own.n_kv_heads * value_dim), queries(n_tokens * width),
        out(size_t{n_tokens} * own.n_query_heads * value_dim);
    for (float &x : keys)
        x = value(3);
    for (float &x : values)
        x = value(1);
    for (NewTokens &part : *parts) {
        std::copy(part.queries[layer].begin(), part.queries[layer].end(),
                  queries.begin() + static_cast<std::ptrdiff_t>(part.first * width));
        for (uint32_t t = 0; !reads && t < part.fresh.n; ++t)
            for (uint32_t h = 0; h < own.n_kv_heads; ++h) {
                const size_t row = (size_t{part.first} + t) * own.n_kv_heads + h;
                const uint32_t e = model_->first_entry(layer) + h;
                Token token = model_->token(e, keys.data() + row * own.head_dim,
                                            values.data() + row * value_dim);
                const uint32_t group = own.n_query_heads / own.n_kv_heads;
                model_->add_queries(e,
                                    part.queries[layer].data() +
                                        (size_t{t} * own.n_query_heads + h * group) * own.head_dim,
                                    &token);
                part.fresh.heads[e].push_back(std::move(token));
            }
    }
    const bool has_fault =
        !reads && choices_.one_in(300) && options_.device->backend == LK_BACKEND_CPU;
    if (has_fault)
        keys[choices_.below(static_cast<uint32_t>(keys.size()))] = INFINITY;
    const Rows k(*options_.device, keys, own.n_kv_heads, own.head_dim);
    const Rows v(*options_.device, values, own.n_kv_heads, value_dim);
    const Rows q(*options_.device, queries, own.n_query_heads, own.head_dim);
    const Rows o(*options_.device, out, own.n_query_heads, value_dim);
    counts_.operations += 2;
    lk_status status =
        lk_append(cache_, layer, k.tensor(), lk::is_latent(own) ? nullptr : v.tensor());
    if (reads) {
        *right = expect(status == LK_E_ARGUMENT, "a reading layer was appended") && *right;
        status = LK_OK;
    }
    if (has_fault) {
        *right = expect(status == LK_E_DATA, "an infinity was taken") && *right;
        ++counts_.faults;
        return status;
    }
    {
        const Memory::Outside scratch(options_.memory);
        if (!status)
            status = lk_attend(cache_, layer, q.tensor(), o.tensor(), nullptr);
    }
    o.read(&out);
    *right = expect(status == LK_OK, "append or attend of a sound step failed") && *right;
    *right = *right && compare(layer, *parts, out);
    return status;
}

// Sequences, and new tokens of each: none when there is nothing to append.
Machine::Request Machine::choose_request() {
    Request request;
    for (const std::unique_ptr<Live> &live : live_) {
        if (!request.parts.empty() && !choices_.one_in(2))
            continue;
        const uint32_t n = choose_count(*live);
        if (!n || request.n_tokens + n > kMostStep)
            continue;
        NewTokens part{live.get(), {}, request.n_tokens, {}};
        fill_new_tokens(n, &part);
        request.ids.push_back(live->id);
        request.counts.push_back(n);
        request.n_tokens += n;
        request.parts.push_back(std::move(part));
    }
    choose_tree(&request);
    return request;
}

// Parents of all new tokens, if one of the sequences has a tree and all may have one; else none
// has.
void Machine::choose_tree(Request *request) {
    bool has_tree = false;
    for (const NewTokens &part : request->parts)
        has_tree = has_tree || !part.fresh.parent.empty();
    for (const NewTokens &part : request->parts)
        has_tree = has_tree && part.fresh.n <= LK_DRAFT_TOKENS && !part.live->scored_chunks;
    for (NewTokens &part : request->parts) {
        if (!has_tree)
            part.fresh.parent.clear();
        for (uint32_t i = 0; has_tree && i < part.fresh.n; ++i)
            request->parents.push_back(part.fresh.parent.empty() ? static_cast<int32_t>(i) - 1
                                                                 : part.fresh.parent[i]);
    }
}

lk_status Machine::begin(const Request &request) {
    const auto n = static_cast<uint32_t>(request.ids.size());
    if (request.spans.empty())
        return lk_step_begin(cache_, options_.device->queue, n, request.ids.data(),
                             request.counts.data(),
                             request.parents.empty() ? nullptr : request.parents.data());
    return lk_step_begin_spans(cache_, options_.device->queue, n, request.ids.data(),
                               request.counts.data(), request.spans.data(),
                               static_cast<uint32_t>(request.spans.size() / 3), request.flags);
}

// After a step that was refused for bytes. Pages that were due may be packed or not, so its
// sequences go.
bool Machine::remove_refused(const std::vector<lk_sequence> &ids) {
    ++counts_.refusals;
    bool right = true;
    for (size_t i = live_.size(); i; --i)
        for (const lk_sequence id : ids)
            if (i <= live_.size() && live_[i - 1]->id == id) {
                right = remove(i - 1) && right;
                break;
            }
    return right && follow_budgets() && follow_all(Packs::kMay) && check_lengths();
}

// What the begin of a step has packed and shrunk.
bool Machine::follow_begin(const Request &request) {
    for (const NewTokens &part : request.parts)
        if (!follow_pending(part.live))
            return false;
    if (!follow_all(Packs::kMay))
        return false;
    bool right = true;
    for (const NewTokens &part : request.parts) {
        model_->begin(&part.live->tokens);
        right = right && follow(part.live, Packs::kDue);
    }
    return right && follow_budgets();
}

bool Machine::step() {
    Request request = choose_request();
    std::vector<NewTokens> &parts = request.parts;
    if (parts.empty())
        return live_.empty() || !options_.most_tokens || remove(0);
    ++counts_.operations;
    spoken_for_ = request.ids;
    if (request.parents.empty())
        request.spans = choose_spans(&parts, &request.flags);
    lk_status begun = begin(request);
    // The tables of a device are those of the begin, so pages that it left above their rung are
    // shrunk outside of the step.
    if (!begun && options_.device->backend != LK_BACKEND_CPU && has_unsettled_budget()) {
        if (!expect_status(lk_step_discard(cache_), "discard") || !follow_budgets())
            return false;
        begun = begin(request);
    }
    if (!drop_evicted(request.ids))
        return false;
    if (begun == LK_E_BUDGET)
        return remove_refused(request.ids);
    --counts_.operations;
    if (!expect_status(begun, "begin"))
        return false;
    bool right = follow_begin(request);
    for (uint32_t i = 0; right && i < parts.size(); ++i)
        right = check_states(i, *parts[i].live);
    lk_status status = LK_OK;
    for (uint32_t l = 0; !status && right && l < layers_.size(); ++l)
        status = run_layer(l, request.n_tokens, &parts, &right);
    for (uint32_t i = 0; right && i < parts.size(); ++i)
        right = write_states(i, parts[i].live);
    if (!right)
        return false;
    if (status || choices_.one_in(6)) {
        ++counts_.discards;
        return expect_status(lk_step_discard(cache_), "discard") && follow_all(Packs::kNothing) &&
               check_lengths();
    }
    return commit(&parts);
}

// All, none or the first ones; of a tree those of a chain, or with takes_paths a path to any token.
std::vector<uint32_t> Machine::choose_kept(const Fresh &fresh, bool takes_paths) {
    const bool is_draft = fresh.n <= LK_DRAFT_TOKENS;
    std::vector<uint32_t> kept;
    if (takes_paths && !fresh.parent.empty()) {
        for (auto at = static_cast<int32_t>(choices_.below(fresh.n)); at >= 0;
             at = fresh.parent[static_cast<size_t>(at)])
            kept.insert(kept.begin(), static_cast<uint32_t>(at));
        return kept;
    }
    uint32_t n = fresh.n;
    if (is_draft && choices_.one_in(3))
        n = choices_.below(fresh.n + 1);
    else if (choices_.one_in(8))
        n = 0;
    while (kept.size() < n) {
        const auto next = static_cast<uint32_t>(kept.size());
        if (!fresh.parent.empty() && fresh.parent[next] != static_cast<int32_t>(next) - 1)
            break;
        kept.push_back(next);
    }
    return kept;
}

bool Machine::commit(std::vector<NewTokens> *parts) {
    const bool takes_paths = choices_.one_in(2);
    std::vector<std::vector<uint32_t>> kept;
    std::vector<uint32_t> counts, all;
    for (const NewTokens &part : *parts) {
        kept.push_back(choose_kept(part.fresh, takes_paths));
        counts.push_back(static_cast<uint32_t>(kept.back().size()));
        all.insert(all.end(), kept.back().begin(), kept.back().end());
    }
    all.push_back(0);  // of no tokens the list has no address
    const lk_status status = takes_paths ? lk_step_commit_tokens(cache_, counts.data(), all.data())
                                         : lk_step_commit(cache_, counts.data());
    if (!expect_status(status, "commit"))
        return false;
    for (size_t i = 0; i < parts->size(); ++i) {
        NewTokens &part = (*parts)[i];
        const uint32_t scored = kept[i].empty() ? 0 : part.live->scored_chunks;
        const std::vector<double> wanted = model_->chunk_scores(
            part.live->tokens, part.fresh, part.fresh.n - 1, part.queries, scored);
        model_->commit(&part.live->tokens, part.fresh, kept[i]);
        if (!kept[i].empty())
            grow_states(part.live);
        if ((scored && !check_scores(part.live, wanted)) || !follow(part.live, Packs::kMay))
            return false;
    }
    return true;
}

}  // namespace stateful
