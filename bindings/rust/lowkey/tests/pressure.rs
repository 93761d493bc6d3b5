// SPDX-License-Identifier: Apache-2.0
//! Budgets: refusals, shrinking, the pressure callback.
mod common;

use common::*;
use lowkey::*;
use std::sync::{Arc, Mutex};

#[test]
fn budgets_hold() {
    let rig = Rig::new("fp16");
    let small = CacheOptions::new(1 << 10);
    let error = Cache::new(&rig.context, &rig.geometry, &rig.plan, small).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Budget);
    let bytes = rig.plan.bytes(256, 1, 256).unwrap();
    let options = CacheOptions::new(bytes.cache_bytes).max_step_tokens(256).slab_bytes(256 << 10);
    let cache = Cache::new(&rig.context, &rig.geometry, &rig.plan, options).unwrap();
    let sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..256).unwrap();
    let error = (0..64).find_map(|_| step(&cache, &sequence, 0..128).err()).unwrap();
    assert_eq!(error.kind, ErrorKind::Budget);
    let budget = format!("the budget of {} bytes", bytes.cache_bytes);
    assert!(error.sentence.contains(&budget), "{}", error);
}

#[test]
fn pages_shrink_for_a_lower_budget() {
    let rig = Rig::new("pm-kvq");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..512).unwrap();
    step(&cache, &sequence, 512..513).unwrap();
    let wide = cache.stats().unwrap();
    cache.shrink(Which::All, 4).unwrap();
    let narrow = cache.stats().unwrap();
    assert!(narrow.pages_shrunk > wide.pages_shrunk);
    assert!(narrow.payload_bytes + narrow.recent_bytes < wide.payload_bytes + wide.recent_bytes);
    assert_eq!(cache.shrink(Which::Only(0), 8).unwrap_err().kind, ErrorKind::Argument);
    assert_eq!(cache.shrink(Which::Only(9), 2).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(cache.set_budget(1000).unwrap_err().kind, ErrorKind::Budget);
    cache.set_budget(32 << 20).unwrap();
    assert_eq!(cache.stats().unwrap().budget_bytes, 32 << 20);
    step(&cache, &sequence, 513..514).unwrap();
}

/// Fill a sequence until a step is refused.
fn fill(cache: &Cache<'_>, sequence: &Sequence<'_>) -> Error {
    (0..512).find_map(|_| step(cache, sequence, 0..64).err()).unwrap()
}

fn crowded<'c>(
    rig: &'c Rig,
    answer: impl FnMut(Pressure) -> PressureAction + Send + 'static,
) -> Cache<'c> {
    let options =
        CacheOptions::new(3 << 20).max_budget_bytes(4 << 20).slab_bytes(256 << 10).max_sequences(3);
    Cache::with_pressure(&rig.context, &rig.geometry, &rig.plan, options, answer).unwrap()
}

#[test]
fn pressure_removes_raises_and_refuses() {
    let rig = Rig::new("fp16");
    let calls = Arc::new(Mutex::new(Vec::new()));
    let victim_id = Arc::new(Mutex::new(0));
    let (seen, id) = (Arc::clone(&calls), Arc::clone(&victim_id));
    let cache = crowded(&rig, move |pressure| {
        let mut seen = seen.lock().unwrap();
        seen.push(pressure);
        match seen.len() {
            1 => PressureAction::Remove(vec![*id.lock().unwrap()]),
            2 => PressureAction::Budget(pressure.budget_bytes + (1 << 20)),
            _ => PressureAction::Refuse,
        }
    });
    let (victim, kept) = (cache.add_sequence().unwrap(), cache.add_sequence().unwrap());
    *victim_id.lock().unwrap() = victim.id();
    step(&cache, &victim, 0..256).unwrap();
    assert_eq!(fill(&cache, &kept).kind, ErrorKind::Budget);
    let calls = calls.lock().unwrap();
    assert!(calls.len() >= 3 && calls[0].shortfall_bytes > 0, "{:?}", calls);
    assert!(calls[0].budget_bytes == 3 << 20 && calls[0].capacity >= 3, "{:?}", calls);
    let stats = cache.stats().unwrap();
    assert_eq!((stats.budget_bytes, stats.n_sequences), (4 << 20, 1));
    assert_eq!(victim.len().unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn pressure_without_meaning_is_refused() {
    let rig = Rig::new("fp16");
    let answers: [fn(Pressure) -> PressureAction; 5] = [
        |_| panic!("of the host's own making"),
        |_| PressureAction::Budget(1),
        |_| PressureAction::Budget(5 << 20),
        |_| PressureAction::Remove(vec![1; 9]),
        |_| PressureAction::Remove(vec![999]),
    ];
    for answer in answers {
        let cache = crowded(&rig, answer);
        let mut sequence = cache.add_sequence().unwrap();
        let kind = fill(&cache, &sequence).kind;
        let known = [ErrorKind::Budget, ErrorKind::Argument, ErrorKind::NotFound];
        assert!(known.contains(&kind), "{:?}", kind);
        sequence.truncate(64).unwrap();
        step(&cache, &sequence, 0..64).unwrap();
    }
}
