// SPDX-License-Identifier: Apache-2.0
//! Caches, steps and sequences as a host uses them, and each misuse that compiles.
mod common;

use common::*;
use lowkey::*;
use std::sync::{Arc, Mutex};
use std::thread;

#[test]
fn versions_and_devices() {
    assert!(version().starts_with(char::is_numeric));
    assert!(build_info().contains(version()));
    let devices = devices().unwrap();
    assert!(devices.iter().any(|device| device.backend == Backend::Cpu && device.n_threads > 0));
}

#[test]
fn chunks_give_what_one_prompt_gives() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let (whole, chunked) = (cache.add_sequence().unwrap(), cache.add_sequence().unwrap());
    let all = step(&cache, &whole, 0..200).unwrap();
    step(&cache, &chunked, 0..150).unwrap();
    let last = step(&cache, &chunked, 150..200).unwrap();
    let tail = &all[150 * QUERY_HEADS * HEAD_DIM..];
    let apart = last.iter().zip(tail).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-3, "{}", apart);
    assert_eq!(whole.len().unwrap(), 200);
}

#[test]
fn packed_pages_are_smaller_and_counted() {
    let rig = Rig::new("kitty-pro");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..512).unwrap();
    step(&cache, &sequence, 512..513).unwrap();
    let stats = cache.stats().unwrap();
    assert_eq!((stats.n_sequences, stats.n_tokens), (1, 513));
    assert!(stats.pages_packed > 0 && stats.payload_bytes > 0);
    assert!(stats.reserved_bytes <= stats.budget_bytes);
    assert_eq!(cache.plan().unwrap().name(), "kitty-pro");
}

#[test]
fn a_dropped_step_is_discarded() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..10).unwrap();
    {
        let mut open = cache.step(&[(&sequence, 5)]).unwrap();
        layers(&mut open, 10..15).unwrap();
    }
    assert_eq!(sequence.len().unwrap(), 10);
    let mut open = cache.step(&[(&sequence, 5)]).unwrap();
    layers(&mut open, 10..15).unwrap();
    open.commit_kept(&[2]).unwrap();
    assert_eq!(sequence.len().unwrap(), 12);
}

#[test]
fn sequences_go_when_they_are_dropped() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let (kept, other) = (cache.add_sequence().unwrap(), cache.add_sequence().unwrap());
    let open = cache.step(&[(&kept, 1)]).unwrap();
    drop(other); // removed after the step that is open now
    assert_eq!(cache.stats().unwrap().n_sequences, 2);
    open.discard();
    assert_eq!(cache.stats().unwrap().n_sequences, 1);
    let id = kept.into_id();
    assert_eq!(cache.adopt_sequence(id).unwrap().id(), id);
    assert_eq!(cache.adopt_sequence(id).err().unwrap().kind, ErrorKind::NotFound);
}

#[test]
fn truncation_rolls_back() {
    let rig = Rig::new("kitty");
    let cache = rig.cache();
    let mut sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..300).unwrap();
    sequence.truncate(290).unwrap();
    assert_eq!(sequence.len().unwrap(), 290);
    let error = sequence.truncate(291).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    assert!(error.sentence.contains("291"), "{}", error);
}

#[test]
fn draft_trees_take_parents() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..8).unwrap();
    let options = StepOptions { parents: Some(&[-1, 0, 0]), ..StepOptions::default() };
    let mut open = cache.step_with(&[(&sequence, 3)], options).unwrap();
    layers(&mut open, 8..11).unwrap();
    let error = open.commit_kept(&[3]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    assert_eq!(sequence.len().unwrap(), 8);
    let short = StepOptions { parents: Some(&[-1]), ..StepOptions::default() };
    assert_eq!(cache.step_with(&[(&sequence, 3)], short).err().unwrap().kind, ErrorKind::Argument);
}

#[test]
fn wrong_shapes_are_refused_before_the_call() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    let mut open = cache.step(&[(&sequence, 2)]).unwrap();
    let data = values(0..3, KV_HEADS, 0);
    let wrong = Tensor::new(&data, KV_HEADS, HEAD_DIM).unwrap();
    let error = open.append(0, wrong, wrong).err().unwrap();
    assert!(error.sentence.contains("[3][2][64]"), "{}", error);
    assert_eq!(open.append(9, wrong, wrong).err().unwrap().kind, ErrorKind::Argument);
    assert!(Tensor::new(&data[1..], KV_HEADS, HEAD_DIM).is_err());
    assert!(Tensor::new(&data, 0, HEAD_DIM).is_err());
    assert!(Tensor::strided(&data, 2, KV_HEADS, HEAD_DIM, 4 * HEAD_DIM, HEAD_DIM).is_ok());
    assert!(Tensor::strided(&data, 2, KV_HEADS, HEAD_DIM, 5 * HEAD_DIM, HEAD_DIM).is_err());
    assert!(Tensor::strided(&data, usize::MAX, KV_HEADS, HEAD_DIM, 4, 4).is_err());
}

#[test]
fn a_nan_poisons_the_step() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    let mut open = cache.step(&[(&sequence, 1)]).unwrap();
    let data = vec![f32::NAN; KV_HEADS * HEAD_DIM];
    let keys = Tensor::new(&data, KV_HEADS, HEAD_DIM).unwrap();
    let error = open.append(0, keys, keys).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Data);
    assert_eq!(open.commit().unwrap_err().kind, ErrorKind::Data);
    step(&cache, &sequence, 0..1).unwrap();
}

#[test]
fn sequences_of_another_cache_are_refused() {
    let rig = Rig::new("fp16");
    let (one, other) = (rig.cache(), rig.cache());
    let sequence = other.add_sequence().unwrap();
    assert_eq!(one.step(&[(&sequence, 1)]).err().unwrap().kind, ErrorKind::Argument);
}

#[test]
fn logs_arrive_and_their_panics_stay_in_rust() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let options =
        ContextOptions::new(Backend::Cpu).threads(1).log(LogLevel::Debug, move |_, line| {
            sink.lock().unwrap().push(line.to_owned());
            if line.contains("budget") {
                panic!("of the host's own making");
            }
        });
    let context = Context::open(options).unwrap();
    let geometry = geometry();
    let plan = Plan::preset("fp16", &geometry).unwrap();
    let error = Cache::new(&context, &geometry, &plan, CacheOptions::new(1)).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Budget);
    assert!(lines.lock().map(|l| !l.is_empty()).unwrap_or_else(|l| !l.into_inner().is_empty()));
}

/// A step's outputs on a context with these options.
fn outputs(options: ContextOptions) -> Result<Vec<f32>> {
    let context = Context::open(options)?;
    let geometry = geometry();
    let plan = Plan::preset("kitty", &geometry)?;
    let options = CacheOptions::new(64 << 20).max_step_tokens(512);
    let cache = Cache::new(&context, &geometry, &plan, options)?;
    let sequence = cache.add_sequence()?;
    step(&cache, &sequence, 0..300)?;
    step(&cache, &sequence, 300..310)
}

#[test]
fn the_host_runs_the_work_on_its_threads() {
    let cpu = || ContextOptions::new(Backend::Cpu);
    let run = |n: u32, task: &(dyn Fn(u32) + Sync)| {
        thread::scope(|scope| {
            for i in (0..n).rev() {
                scope.spawn(move || task(i));
            }
        })
    };
    let expected = outputs(cpu().threads(1)).unwrap();
    assert_eq!(outputs(cpu().threads(3).parallel_for(run)).unwrap(), expected);
    let half = |n: u32, task: &(dyn Fn(u32) + Sync)| (0..n / 2).for_each(task);
    let error = outputs(cpu().threads(4).parallel_for(half)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Device);
    let broken = |_: u32, _: &(dyn Fn(u32) + Sync)| panic!("of the host's own making");
    assert!(outputs(cpu().threads(4).parallel_for(broken)).is_err());
}

#[test]
fn kept_pages_come_back() {
    let rig = Rig::new("kitty");
    let mut window = Layer::new(QUERY_HEADS as u32, KV_HEADS as u32, HEAD_DIM as u32);
    window.window_tokens = 64;
    let geometry = Geometry::uniform(LAYERS, window);
    let plan = Plan::preset("kitty", &geometry).unwrap();
    let freed = plan.bytes(2000, 1, 500).unwrap();
    let kept = plan.bytes_with_windowed(2000, 1, 500).unwrap();
    assert!(kept.payload_bytes > freed.payload_bytes);
    for (keeps, size) in [(false, freed), (true, kept)] {
        let options =
            CacheOptions::new(size.cache_bytes).max_step_tokens(500).keeps_windowed(keeps);
        let cache = Cache::new(&rig.context, &geometry, &plan, options).unwrap();
        let mut sequence = cache.add_sequence().unwrap();
        for at in (0..2000).step_by(500) {
            step(&cache, &sequence, at..at + 500).unwrap();
        }
        assert_eq!(sequence.truncate(700).is_ok(), keeps);
    }
}

#[test]
fn a_monitor_reads_from_another_thread() {
    let rig = Rig::new("kitty");
    let cache = rig.cache();
    let monitor = cache.monitor();
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut most = 0;
            while most < 64 {
                monitor.poll().unwrap();
                most = most.max(monitor.stats().unwrap().n_tokens);
                thread::yield_now();
            }
            most
        });
        let sequence = cache.add_sequence().unwrap();
        for at in 0..64 {
            step(&cache, &sequence, at..at + 1).unwrap();
        }
        assert_eq!(reader.join().unwrap(), 64);
    });
}

#[test]
fn a_cache_moves_between_threads() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    thread::scope(|scope| {
        let owner = scope.spawn(move || {
            let sequence = cache.add_sequence().unwrap();
            step(&cache, &sequence, 0..4).unwrap();
            drop(sequence);
            cache
        });
        assert_eq!(owner.join().unwrap().stats().unwrap().n_sequences, 0);
    });
}

#[test]
fn splits_merge_to_the_whole() {
    let context = Context::cpu().unwrap();
    let (a, b) = (vec![1f32; HEAD_DIM], vec![3f32; HEAD_DIM]);
    let (lse_a, lse_b) = ([0f32], [0f32]);
    let mut out = vec![0f32; HEAD_DIM];
    let mut lse = [0f32];
    let splits = [
        (Tensor::new(&a, 1, HEAD_DIM).unwrap(), Tensor::new(&lse_a, 1, 1).unwrap()),
        (Tensor::new(&b, 1, HEAD_DIM).unwrap(), Tensor::new(&lse_b, 1, 1).unwrap()),
    ];
    merge(
        &context,
        None,
        &splits,
        TensorMut::new(&mut out, 1, HEAD_DIM).unwrap(),
        Some(TensorMut::new(&mut lse, 1, 1).unwrap()),
    )
    .unwrap();
    assert!(out.iter().all(|&x| (x - 2.0).abs() < 1e-6));
    assert!((lse[0] - 2f32.ln()).abs() < 1e-6);
}

#[test]
fn forks_share_pages_and_live_on() {
    let rig = Rig::new("kitty");
    let cache = rig.cache();
    let parent = cache.add_sequence().unwrap();
    step(&cache, &parent, 0..400).unwrap();
    let child = parent.fork().unwrap();
    let early = parent.fork_at(100).unwrap();
    assert!(cache.stats().unwrap().shared_bytes > 0);
    assert_eq!(cache.stats().unwrap().n_tokens, 900);
    let wanted = step(&cache, &parent, 400..401).unwrap();
    drop(parent);
    assert_eq!(step(&cache, &child, 400..401).unwrap(), wanted);
    assert_eq!(early.len().unwrap(), 100);
    assert_eq!(child.fork_at(999).err().unwrap().kind, ErrorKind::Argument);
}

#[test]
fn any_path_of_a_draft_tree_is_kept() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..8).unwrap();
    let tree = |cache: &Cache<'_>, path: &[u32]| {
        let options = StepOptions { parents: Some(&[-1, 0, 0, 2]), ..StepOptions::default() };
        let mut open = cache.step_with(&[(&sequence, 4)], options)?;
        layers(&mut open, 8..12)?;
        open.commit_paths(&[path])
    };
    assert_eq!(tree(&cache, &[0, 1, 2]).unwrap_err().kind, ErrorKind::Argument);
    tree(&cache, &[0, 2, 3]).unwrap();
    assert_eq!(sequence.len().unwrap(), 11);
}
