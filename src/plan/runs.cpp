// SPDX-License-Identifier: Apache-2.0
#include "plan/runs.h"

#include <cstring>

namespace lk {

namespace {

// What a change of rules may add to the arrays of a plan.
struct Growth {
    uint64_t runs;
    uint64_t classes;
    uint64_t key_parameters;
};

lk_status no_rules_memory() { return fail(LK_E_NOMEM, "no memory for the rules of a plan"); }

// For each LK_MIN_GROUP numbers of an array, of which every index is a multiple: the index after
// the copy.
class MovedNumbers {
  public:
    explicit MovedNumbers(const Allocator &allocator) : to_(allocator) {}
    bool open(size_t n_numbers) {
        if (!to_.resize(n_numbers / LK_STRIP_CHANNELS))
            return false;
        for (uint32_t &to : to_)
            to = kNoIndex;
        return true;
    }
    void refer(uint32_t index, uint32_t head_dim) {
        if (index == kNoIndex || to_[index / LK_STRIP_CHANNELS] != kNoIndex)
            return;
        to_[index / LK_STRIP_CHANNELS] = static_cast<uint32_t>(size_);
        size_ += head_dim;
    }
    uint64_t size() const { return size_; }
    uint32_t operator[](uint32_t index) const {
        return index == kNoIndex ? kNoIndex : to_[index / LK_STRIP_CHANNELS];
    }
    template <class Number>
    void copy(uint32_t index, uint32_t head_dim, const Array<Number> &from,
              Array<Number> *to) const {
        if (index != kNoIndex)
            std::memcpy(to->data() + (*this)[index], from.data() + index,
                        head_dim * sizeof(Number));
    }

  private:
    Array<uint32_t> to_;
    uint64_t size_ = 0;
};

// Copies of the arrays of a plan with what its layers refer to, and twice that capacity.
class Compaction {
  public:
    explicit Compaction(Plan *plan)
        : plan_(*plan),
          run_of_(*plan->allocator),
          runs_(*plan->allocator),
          classes_of_(*plan->allocator),
          classes_(*plan->allocator),
          parameters_of_(*plan->allocator),
          parameters_(*plan->allocator) {}

    bool run(const Growth &growth) {
        if (!run_of_.resize(plan_.runs.size()) || !classes_of_.open(plan_.classes.size()) ||
            !parameters_of_.open(plan_.key_parameters.size()))
            return false;
        uint64_t n_runs = 0;
        for (const LayerPlan &layer : plan_.layers)
            n_runs += refer(layer);
        if (!runs_.reserve(2 * (n_runs + growth.runs)) ||
            !classes_.reserve(2 * (classes_of_.size() + growth.classes)) ||
            !parameters_.reserve(2 * (parameters_of_.size() + growth.key_parameters)))
            return false;
        (void)classes_.extend(classes_of_.size());
        (void)parameters_.extend(parameters_of_.size());
        for (uint32_t &to : run_of_)
            to = kNoIndex;
        for (LayerPlan &layer : plan_.layers)
            move(&layer);
        plan_.runs = std::move(runs_);
        plan_.classes = std::move(classes_);
        plan_.key_parameters = std::move(parameters_);
        return true;
    }

  private:
    // Runs that no layer before has referred to.
    uint64_t refer(const LayerPlan &layer) {
        if (run_of_[layer.first_run])
            return 0;
        run_of_[layer.first_run] = 1;
        const uint32_t head_dim = layer.geometry.head_dim;
        for (uint32_t r = 0; r < layer.n_runs; ++r) {
            const KeyRule &key = plan_.runs[layer.first_run + r].key;
            classes_of_.refer(key.classes, head_dim);
            parameters_of_.refer(key.centers, head_dim);
            parameters_of_.refer(key.scales, head_dim);
        }
        return layer.n_runs;
    }
    void move(LayerPlan *layer) {
        uint32_t &to = run_of_[layer->first_run];
        const uint32_t first = layer->first_run;
        if (to == kNoIndex) {
            to = static_cast<uint32_t>(runs_.size());
            for (uint32_t r = 0; r < layer->n_runs; ++r)
                (void)runs_.push(moved(plan_.runs[first + r], layer->geometry.head_dim));
        }
        layer->first_run = to;
    }
    HeadRun moved(const HeadRun &from, uint32_t head_dim) {
        HeadRun out = from;
        classes_of_.copy(from.key.classes, head_dim, plan_.classes, &classes_);
        parameters_of_.copy(from.key.centers, head_dim, plan_.key_parameters, &parameters_);
        parameters_of_.copy(from.key.scales, head_dim, plan_.key_parameters, &parameters_);
        out.key.classes = classes_of_[from.key.classes];
        out.key.centers = parameters_of_[from.key.centers];
        out.key.scales = parameters_of_[from.key.scales];
        return out;
    }

    Plan &plan_;
    Array<uint32_t> run_of_;
    Array<HeadRun> runs_;
    MovedNumbers classes_of_;
    Array<uint8_t> classes_;
    MovedNumbers parameters_of_;
    Array<float> parameters_;
};

bool fits(const Plan &plan, const Growth &growth) {
    return plan.runs.size() + growth.runs <= plan.runs.capacity() &&
           plan.classes.size() + growth.classes <= plan.classes.capacity() &&
           plan.key_parameters.size() + growth.key_parameters <= plan.key_parameters.capacity();
}

// Indices in an array of [head_dim] numbers.
template <class Number>
bool same_numbers(const Array<Number> &numbers, uint32_t a, uint32_t b, uint32_t head_dim) {
    if (a == b || a == kNoIndex || b == kNoIndex)
        return a == b;
    return !std::memcmp(numbers.data() + a, numbers.data() + b, head_dim * sizeof(Number));
}

}  // namespace

bool same_rules(const Plan &plan, const HeadRun &a, const HeadRun &b, uint32_t head_dim) {
    const KeyRule &x = a.key;
    const KeyRule &y = b.key;
    return x.bits == y.bits && x.boost_bits == y.boost_bits && x.axis == y.axis &&
           x.boost_ranking == y.boost_ranking && x.group == y.group &&
           x.boost_channels == y.boost_channels && x.ranges == y.ranges &&
           a.value.ranges == b.value.ranges && a.value.bits == b.value.bits &&
           a.value.group == b.value.group &&
           same_numbers(plan.classes, x.classes, y.classes, head_dim) &&
           same_numbers(plan.key_parameters, x.centers, y.centers, head_dim) &&
           same_numbers(plan.key_parameters, x.scales, y.scales, head_dim);
}

KeyRule packed_key(const lk_key_rule &rule) {
    KeyRule out;
    out.bits = static_cast<uint8_t>(rule.bits);
    out.boost_bits = static_cast<uint8_t>(rule.boost_bits);
    out.axis = static_cast<uint8_t>(rule.axis);
    out.boost_ranking = static_cast<uint8_t>(rule.boost_ranking);
    out.group = static_cast<uint16_t>(rule.group);
    out.boost_channels = static_cast<uint16_t>(rule.boost_channels);
    out.ranges = {static_cast<OneBit>(rule.one_bit), rule.clip};
    return out;
}

ValueRule packed_value(const lk_value_rule &rule) {
    ValueRule out;
    out.bits = static_cast<uint8_t>(rule.bits);
    out.group = static_cast<uint16_t>(rule.group);
    out.ranges = {static_cast<OneBit>(rule.one_bit), rule.clip};
    return out;
}

void push_run(Plan *plan, uint32_t first, const HeadRun &run, bool may_be_equal,
              uint32_t head_dim) {
    if (may_be_equal && plan->runs.size() > first &&
        same_rules(*plan, plan->runs.back(), run, head_dim))
        plan->runs.back().end = run.end;
    else
        (void)plan->runs.push(run);
}

lk_status reserve_change(Plan *plan, Range layers, uint64_t n_classes, uint64_t n_parameters) {
    Growth growth = {0, n_classes, n_parameters};
    for_each_group(*plan, layers, [&](uint32_t l, uint32_t) {
        growth.runs += uint64_t{plan->layers[l].n_runs} + 2;
    });
    if (fits(*plan, growth) || Compaction(plan).run(growth))
        return LK_OK;
    return no_rules_memory();
}

lk_status add_head_run(Plan *plan, uint32_t layer, bool is_first, uint32_t end,
                       const HeadRules &rules) {
    LayerPlan &own = plan->layers[layer];
    const uint32_t head_dim = own.geometry.head_dim;
    const auto grow = [](auto *array, uint64_t n) {
        const uint64_t size = array->size() + n;
        return size <= array->capacity() || array->reserve(size + size / 2);
    };
    const uint64_t n_parameters = (rules.centers ? head_dim : 0) + (rules.scales ? head_dim : 0);
    if (!grow(&plan->runs, 1) || !grow(&plan->key_parameters, n_parameters) ||
        !grow(&plan->classes, rules.key->channel_bits ? head_dim : 0))
        return no_rules_memory();
    HeadRun run;
    run.end = end;
    run.key = packed_key(*rules.key);
    run.value = packed_value(*rules.value);
    if (rules.key->channel_bits)
        run.key.classes = push_numbers(rules.key->channel_bits, head_dim, &plan->classes);
    float numbers[LK_MAX_HEAD_DIM];
    if (rules.centers) {
        clear_small(rules.centers, head_dim, kCenters, numbers);
        run.key.centers = push_numbers(numbers, head_dim, &plan->key_parameters);
    }
    if (rules.scales)
        run.key.scales = push_numbers(rules.scales, head_dim, &plan->key_parameters);
    if (is_first)
        own.first_run = static_cast<uint32_t>(plan->runs.size());
    push_run(plan, own.first_run, run, true, head_dim);
    own.n_runs = static_cast<uint32_t>(plan->runs.size()) - own.first_run;
    return LK_OK;
}

void share_runs(Plan *plan, uint32_t layer, uint32_t n_layers) {
    for (uint32_t l = layer + 1; l < layer + n_layers; ++l) {
        plan->layers[l].first_run = plan->layers[layer].first_run;
        plan->layers[l].n_runs = plan->layers[layer].n_runs;
    }
}

lk_status set_rules(Plan *plan, uint32_t layer, const KeyRule &key, const ValueRule &value) {
    const Range layers = {layer, layer + 1};
    LK_TRY(reserve_change(plan, layers, 0, 0));
    change_heads(plan, layers, LK_ALL, [&](HeadRun *run) {
        run->key = key;
        run->value = value;
    });
    return LK_OK;
}

lk_status set_head_bits(Plan *plan, uint32_t layer, const uint8_t *key_bits,
                        const uint8_t *value_bits) {
    const LayerPlan own = plan->layers[layer];
    const Growth growth = {own.geometry.n_kv_heads, 0, 0};
    if (!fits(*plan, growth) && !Compaction(plan).run(growth))
        return no_rules_memory();
    const auto first = static_cast<uint32_t>(plan->runs.size());
    for (uint32_t h = 0; h < own.geometry.n_kv_heads; ++h) {
        HeadRun run = plan->run(layer, h);
        run.end = h + 1;
        if (key_bits[h]) {
            run.key.bits = key_bits[h];
            run.key.classes = kNoIndex;
        }
        if (value_bits[h])
            run.value.bits = value_bits[h];
        push_run(plan, first, run, true, own.geometry.head_dim);
    }
    plan->layers[layer].first_run = first;
    plan->layers[layer].n_runs = static_cast<uint32_t>(plan->runs.size()) - first;
    return LK_OK;
}

}  // namespace lk
