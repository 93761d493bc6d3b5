// SPDX-License-Identifier: Apache-2.0
//! Recurrent states: what steps, forks, rollbacks and snapshots make of them, and misuse.
mod common;

use common::*;
use lowkey::*;

const BYTES: [u64; 2] = [16, 48];

fn options() -> CacheOptions<'static> {
    let states = StateOptions { bytes: &BYTES, versions: 2, interval_tokens: 4 };
    CacheOptions::new(64 << 20).max_sequences(4).max_step_tokens(512).states(states)
}

/// A step that finds `before` in the second state and leaves `after`.
fn step(cache: &Cache<'_>, sequence: &Sequence<'_>, n: usize, before: u8, after: u8) {
    let first = sequence.len().unwrap() as usize;
    let mut open = cache.step(&[(sequence, n as u32)]).unwrap();
    let mut state = [99; 48];
    open.read_state(0, 1, &mut state).unwrap();
    assert_eq!(state, [before; 48]);
    layers(&mut open, first..first + n).unwrap();
    open.write_state(0, 1, &[after; 48]).unwrap();
    open.commit().unwrap();
}

#[test]
fn states_follow_their_sequences() {
    let rig = Rig::new("kivi2");
    let cache = Cache::new(&rig.context, &rig.geometry, &rig.plan, options()).unwrap();
    let mut sequence = cache.add_sequence().unwrap();
    for i in 0..4 {
        step(&cache, &sequence, 4, i, i + 1);
    }
    let fork = sequence.fork_at(8).unwrap();
    step(&cache, &fork, 1, 2, 50);
    assert_eq!(sequence.find_state(11).unwrap(), 8);
    assert_eq!(sequence.truncate(11).unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(sequence.rollback(11).unwrap(), 8);
    assert_eq!(sequence.len().unwrap(), 8);
    let mut saved = Vec::new();
    cache.save(&[&sequence], SnapshotOptions::default(), &mut saved).unwrap();
    let loaded = cache.load(SnapshotOptions::default(), &saved[..], 1).unwrap();
    step(&cache, &loaded[0], 1, 2, 7);
    assert!(cache.stats().unwrap().state_bytes > 0);
}

#[test]
fn a_place_is_memory_of_the_state() {
    let rig = Rig::new("kivi2");
    let cache = Cache::new(&rig.context, &rig.geometry, &rig.plan, options()).unwrap();
    let sequence = cache.add_sequence().unwrap();
    let mut open = cache.step(&[(&sequence, 1)]).unwrap();
    let place = open.state(0, 1).unwrap();
    assert_eq!((place.bytes, place.buffer), (48, 0));
    // SAFETY: the step is open, and the CPU has done its work.
    unsafe { std::ptr::write_bytes(place.data as *mut u8, 5, 48) };
    let mut state = [0; 48];
    open.read_state(0, 1, &mut state).unwrap();
    assert_eq!(state, [5; 48]);
    assert_eq!(open.state(1, 0).unwrap_err().kind, ErrorKind::Argument);
    assert_eq!(open.read_state(0, 2, &mut state).unwrap_err().kind, ErrorKind::Argument);
    assert_eq!(open.write_state(0, 0, &state).unwrap_err().kind, ErrorKind::Argument);
}

#[test]
fn the_budget_counts_them() {
    let states = StateOptions { bytes: &BYTES, versions: 2, interval_tokens: 4 };
    let one = states.budget_bytes(1).unwrap();
    assert_eq!(states.budget_bytes(3).unwrap(), 3 * one);
    assert_eq!(StateOptions::default().budget_bytes(3).unwrap(), 0);
    let odd = StateOptions { bytes: &[20], ..states };
    assert_eq!(odd.budget_bytes(1).unwrap_err().kind, ErrorKind::Argument);
}
