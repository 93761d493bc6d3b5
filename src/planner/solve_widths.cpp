// One choice for each item at the least cost within a byte budget, exactly (the multiple-choice
// knapsack problem).
//
// Bytes are priced first: at the price p that just spends the budget, each item has a best choice,
// and every other choice has a regret, what it costs more than that at this price. A whole choice
// costs at least (sum of the best at p) - p * budget + (sum of regrets), so with any feasible
// choice at hand, partial choices whose regrets exceed the gap can be dropped. What is left is
// dynamic programming over bytes: item by item, only sums stay that no other beats in bytes and
// cost.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/memory.h"
#include "base/status.h"
#include "planner/solve_widths.h"

namespace lk {

namespace {

using ull = unsigned long long;

constexpr double kSlack = 1e-9;   // of the sums, for rounding
constexpr int kPriceSteps = 100;  // bisections of the price: to the last bit
constexpr uint64_t kMostStates = uint64_t{1} << 26;

// A sum over the items so far.
struct State {
    uint64_t bytes;
    double cost;
    double regret;
    uint32_t parent;  // in the list of all states
    uint32_t choice;
};

// A choice of the item at hand, added to one state after the other.
struct Lane {
    uint64_t at;
    uint64_t bytes;
    double cost;
    double regret;
    uint32_t choice;
    State next;

    // In the order in which sums are kept; of equal ones the lower choice.
    bool is_before(const Lane &other) const {
        return next.bytes != other.next.bytes ? next.bytes < other.next.bytes
               : next.cost != other.next.cost ? next.cost < other.next.cost
                                              : choice < other.choice;
    }
};

class Allocation {
  public:
    Allocation(const WidthProblem &problem, uint32_t *choices)
        : problem_(problem), choices_(choices) {}

    lk_status solve();

  private:
    double cost(uint32_t item, uint32_t choice) const {
        return problem_.costs[static_cast<uint64_t>(item) * problem_.n_choices + choice];
    }
    uint64_t bytes(uint32_t item, uint32_t choice) const {
        return problem_.bytes[static_cast<uint64_t>(item) * problem_.n_choices + choice];
    }
    double priced(uint32_t item, uint32_t choice) const {
        return cost(item, choice) + price_ * static_cast<double>(bytes(item, choice));
    }
    double best_priced(uint32_t item) const;
    uint64_t choose_at_price(bool *fits);
    lk_status find_least();
    void find_price();
    void improve();
    double total_cost() const;
    double lower_bound() const;
    bool order_items();
    uint64_t least_bytes(uint32_t item) const;
    lk_status search();
    lk_status extend(uint32_t item, uint64_t begin, uint64_t rest);
    void advance(uint64_t end, uint64_t rest, Lane *lane) const;
    void sift_down(uint32_t position);
    lk_status no_memory() const;
    void trace(uint64_t last);

    const WidthProblem &problem_;
    uint32_t *choices_;  // the best that is known
    double price_ = 0;
    double gap_ = 0;
    Array<uint32_t> order_;
    Array<State> states_;
    Array<Lane> lanes_;
    Array<uint32_t> heap_;  // of lanes that have a next state, the first one at its top
};

double Allocation::best_priced(uint32_t item) const {
    double least = priced(item, 0);
    for (uint32_t c = 1; c < problem_.n_choices; ++c)
        least = std::min(least, priced(item, c));
    return least;
}

// The best choices at the price, fewer bytes first among equals, and their bytes.
uint64_t Allocation::choose_at_price(bool *fits) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < problem_.n_items; ++i) {
        uint32_t best = 0;
        double least = priced(i, 0);
        for (uint32_t c = 1; c < problem_.n_choices; ++c) {
            const double price = priced(i, c);
            if (price < least || (price == least && bytes(i, c) < bytes(i, best))) {
                best = c;
                least = price;
            }
        }
        choices_[i] = best;
        sum += bytes(i, best);
    }
    *fits = sum <= problem_.budget_bytes;
    return sum;
}

// Is there any choice? The smallest of each item. Sums of the largest stay within 64 bits.
lk_status Allocation::find_least() {
    uint64_t least_sum = 0;
    uint64_t most_sum = 0;
    for (uint32_t i = 0; i < problem_.n_items; ++i) {
        uint64_t least = UINT64_MAX;
        uint64_t most = 0;
        for (uint32_t c = 0; c < problem_.n_choices; ++c) {
            if (!(cost(i, c) >= 0) || !std::isfinite(cost(i, c)))
                return fail(LK_E_ARGUMENT, "costs[%u][%u] is %g, must be finite and at least 0", i,
                            c, cost(i, c));
            least = std::min(least, bytes(i, c));
            most = std::max(most, bytes(i, c));
        }
        if (!checked_add(least_sum, least, &least_sum) || !checked_add(most_sum, most, &most_sum) ||
            most_sum > (uint64_t{1} << 53))
            return fail(LK_E_ARGUMENT, "bytes of item %u make a sum beyond 2^53", i);
    }
    if (least_sum > problem_.budget_bytes)
        return fail(LK_E_BUDGET, "budget_bytes is %llu, the smallest choices take %llu",
                    ull{problem_.budget_bytes}, ull{least_sum});
    return LK_OK;
}

// The least price at which the best choices fit; they are then in choices_.
void Allocation::find_price() {
    bool fits;
    (void)choose_at_price(&fits);
    if (fits)
        return;
    double most = 0;
    for (uint32_t i = 0; i < problem_.n_items; ++i)
        for (uint32_t c = 0; c < problem_.n_choices; ++c)
            most = std::max(most, cost(i, c));
    double low = 0;
    double high = most + 1;  // a byte is dearer than any choice: the smallest ones win
    for (int step = 0; step < kPriceSteps; ++step) {
        price_ = low + (high - low) / 2;
        if (price_ == low || price_ == high)
            break;
        (void)choose_at_price(&fits);
        (fits ? high : low) = price_;
    }
    price_ = high;
    (void)choose_at_price(&fits);
}

// Spend what is left: the exchange that saves most cost, while one fits.
void Allocation::improve() {
    uint64_t used = 0;
    for (uint32_t i = 0; i < problem_.n_items; ++i)
        used += bytes(i, choices_[i]);
    for (uint32_t round = 0; round < problem_.n_items; ++round) {
        double most = 0;
        uint32_t item = 0;
        uint32_t choice = 0;
        for (uint32_t i = 0; i < problem_.n_items; ++i)
            for (uint32_t c = 0; c < problem_.n_choices; ++c) {
                const double saved = cost(i, choices_[i]) - cost(i, c);
                if (saved > most &&
                    used - bytes(i, choices_[i]) + bytes(i, c) <= problem_.budget_bytes) {
                    most = saved;
                    item = i;
                    choice = c;
                }
            }
        if (most == 0)
            return;
        used = used - bytes(item, choices_[item]) + bytes(item, choice);
        choices_[item] = choice;
    }
}

double Allocation::total_cost() const {
    double sum = 0;
    for (uint32_t i = 0; i < problem_.n_items; ++i)
        sum += cost(i, choices_[i]);
    return sum;
}

double Allocation::lower_bound() const {
    double sum = -price_ * static_cast<double>(problem_.budget_bytes);
    for (uint32_t i = 0; i < problem_.n_items; ++i)
        sum += best_priced(i);
    return sum;
}

// The next of the states up to `end` that the lane's choice may follow.
void Allocation::advance(uint64_t end, uint64_t rest, Lane *lane) const {
    for (; lane->at < end; ++lane->at) {
        const State &from = states_[lane->at];
        lane->next = {from.bytes + lane->bytes, from.cost + lane->cost, from.regret + lane->regret,
                      static_cast<uint32_t>(lane->at), lane->choice};
        if (lane->next.regret <= gap_ && lane->next.bytes + rest <= problem_.budget_bytes)
            return;
    }
}

// Moves the lane at a position of the heap to where no lane below it comes before it.
void Allocation::sift_down(uint32_t position) {
    const auto size = static_cast<uint32_t>(heap_.size());
    const uint32_t moved = heap_[position];
    for (uint32_t child = 2 * position + 1; child < size; child = 2 * position + 1) {
        if (child + 1 < size && lanes_[heap_[child + 1]].is_before(lanes_[heap_[child]]))
            ++child;
        if (!lanes_[heap_[child]].is_before(lanes_[moved]))
            break;
        heap_[position] = heap_[child];
        position = child;
    }
    heap_[position] = moved;
}

// The states from `begin` on, each with every choice of the item that may still be part of the
// best; of these, sorted by bytes, those that no other beats. `rest` is what the later items take
// at least. Each choice keeps the order of the states, so their lists are merged.
lk_status Allocation::extend(uint32_t item, uint64_t begin, uint64_t rest) {
    const double best = best_priced(item);
    const uint64_t end = states_.size();
    lanes_.clear();
    heap_.clear();
    for (uint32_t c = 0; c < problem_.n_choices; ++c) {
        Lane lane = {begin, bytes(item, c), cost(item, c), priced(item, c) - best, c, {}};
        if (lane.regret > gap_)
            continue;
        advance(end, rest, &lane);
        if (lane.at < end &&
            (!heap_.push(static_cast<uint32_t>(lanes_.size())) || !lanes_.push(lane)))
            return no_memory();
    }
    for (auto i = static_cast<uint32_t>(heap_.size()); i-- > 0;)
        sift_down(i);
    double least = INFINITY;
    while (!heap_.empty()) {
        Lane &lane = lanes_[heap_[0]];
        if (lane.next.cost < least) {
            least = lane.next.cost;
            if (states_.size() >= kMostStates || !states_.push(lane.next))
                return no_memory();
        }
        ++lane.at;
        advance(end, rest, &lane);
        if (lane.at >= end)
            heap_.swap_remove(0);
        if (!heap_.empty())
            sift_down(0);
    }
    return LK_OK;
}

lk_status Allocation::no_memory() const {
    return fail(LK_E_NOMEM, "no memory for more than %zu sums of %u items", states_.size(),
                problem_.n_items);
}

void Allocation::trace(uint64_t last) {
    for (uint64_t i = order_.size(); i-- > 0;) {
        choices_[order_[i]] = states_[last].choice;
        last = states_[last].parent;
    }
}

// Items with one choice left come first: after the others they would copy all their sums.
bool Allocation::order_items() {
    for (const bool is_settled : {true, false})
        for (uint32_t i = 0; i < problem_.n_items; ++i) {
            const double best = best_priced(i);
            uint32_t n = 0;
            for (uint32_t c = 0; c < problem_.n_choices; ++c)
                n += priced(i, c) - best <= gap_;
            if ((n == 1) == is_settled && !order_.push(i))
                return false;
        }
    return true;
}

uint64_t Allocation::least_bytes(uint32_t item) const {
    uint64_t least = bytes(item, 0);
    for (uint32_t c = 1; c < problem_.n_choices; ++c)
        least = std::min(least, bytes(item, c));
    return least;
}

lk_status Allocation::search() {
    uint64_t rest = 0;
    for (uint32_t i = 0; i < problem_.n_items; ++i)
        rest += least_bytes(i);
    if (!order_items() || !states_.push({0, 0, 0, 0, 0}))
        return no_memory();
    uint64_t begin = 0;
    for (const uint32_t item : order_) {
        rest -= least_bytes(item);
        const uint64_t end = states_.size();
        LK_TRY(extend(item, begin, rest));
        begin = end;
        if (begin == states_.size())
            return LK_OK;  // nothing beats what is known
    }
    const uint64_t last = states_.size() - 1;  // the most bytes, and so the least cost
    if (states_[last].cost < total_cost())
        trace(last);
    return LK_OK;
}

lk_status Allocation::solve() {
    LK_TRY(find_least());
    find_price();
    improve();
    const double known = total_cost();
    gap_ = known - lower_bound() +
           kSlack * (1 + std::fabs(known) + price_ * static_cast<double>(problem_.budget_bytes));
    return price_ == 0 ? LK_OK : search();
}

}  // namespace

lk_status solve_widths(const WidthProblem &problem, uint32_t *choices) {
    Array<uint32_t> best;
    if (!best.resize(problem.n_items))
        return fail(LK_E_NOMEM, "no memory to solve for %u items", problem.n_items);
    LK_TRY(Allocation(problem, best.data()).solve());
    std::memcpy(choices, best.data(), best.size() * sizeof *choices);
    return LK_OK;
}

}  // namespace lk
