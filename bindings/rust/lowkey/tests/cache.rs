//! Caches, steps and sequences as a host uses them, and each misuse that compiles.
use lowkey::*;
use std::sync::{Arc, Mutex};
use std::thread;

const LAYERS: usize = 2;
const QUERY_HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

fn geometry() -> Geometry {
    Geometry::uniform(LAYERS, Layer::new(QUERY_HEADS as u32, KV_HEADS as u32, HEAD_DIM as u32))
}

/// Values that depend only on their position.
fn values(tokens: std::ops::Range<usize>, heads: usize, salt: u64) -> Vec<f32> {
    let width = heads * HEAD_DIM;
    tokens
        .flat_map(|token| (0..width).map(move |i| (token * width + i) as u64))
        .map(|at| {
            let mixed = (at ^ salt << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

struct Rig {
    context: Context,
    geometry: Geometry,
    plan: Plan,
}

impl Rig {
    fn new(preset: &str) -> Self {
        let context = Context::open(ContextOptions::new(Backend::Cpu).threads(1)).unwrap();
        let geometry = geometry();
        let plan = Plan::preset(preset, &geometry).unwrap();
        Rig { context, geometry, plan }
    }

    fn cache(&self) -> Cache<'_> {
        let options = CacheOptions::new(64 << 20).max_sequences(4).max_step_tokens(512);
        Cache::new(&self.context, &self.geometry, &self.plan, options).unwrap()
    }
}

/// One step of one sequence; the outputs of the last layer.
fn step(
    cache: &Cache<'_>,
    sequence: &Sequence<'_>,
    tokens: std::ops::Range<usize>,
) -> Result<Vec<f32>> {
    let mut open = cache.step(&[(sequence, tokens.len() as u32)])?;
    let out = layers(&mut open, tokens)?;
    open.commit()?;
    Ok(out)
}

fn layers(open: &mut Step<'_>, tokens: std::ops::Range<usize>) -> Result<Vec<f32>> {
    let mut out = vec![0f32; tokens.len() * QUERY_HEADS * HEAD_DIM];
    for layer in 0..LAYERS as u32 {
        let salt = u64::from(layer) * 3;
        let k = values(tokens.clone(), KV_HEADS, salt);
        let v = values(tokens.clone(), KV_HEADS, salt + 1);
        let q = values(tokens.clone(), QUERY_HEADS, salt + 2);
        let (k, v) = (Tensor::new(&k, KV_HEADS, HEAD_DIM)?, Tensor::new(&v, KV_HEADS, HEAD_DIM)?);
        open.append(layer, k, v)?.attend(
            Tensor::new(&q, QUERY_HEADS, HEAD_DIM)?,
            TensorMut::new(&mut out, QUERY_HEADS, HEAD_DIM)?,
        )?;
    }
    Ok(out)
}

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
    assert!(error.sentence.contains("lacks"), "{}", error);
}

#[test]
fn plans_are_built_and_read_back() {
    let geometry = geometry();
    assert!(Plan::preset_names().contains(&"kitty-pro"));
    assert_eq!(Plan::preset("no such", &geometry).err().unwrap().kind, ErrorKind::NotFound);
    assert_eq!(Plan::preset("a\0b", &geometry).err().unwrap().kind, ErrorKind::Argument);
    let mut plan = Plan::preset("fp16", &geometry).unwrap();
    let key = KeyRule {
        boost: Some(Boost { channels: 16, bits: 4, ranking: Ranking::Key }),
        ..KeyRule::new(2)
    };
    plan.set_name("mine")
        .and_then(|plan| plan.set_key(Which::All, Which::All, &key))
        .and_then(|plan| {
            plan.set_value(
                Which::Only(1),
                Which::Only(0),
                ValueRule { group: 32, ..ValueRule::new(4) },
            )
        })
        .and_then(|plan| plan.set_metadata(Which::All, Metadata::F8))
        .and_then(|plan| plan.set_pages(64))
        .and_then(|plan| plan.set_recent(16, 64))
        .unwrap();
    plan.validate(Some(&geometry)).unwrap();
    assert_eq!(plan.width(0, 0, false, 5, 0, None).unwrap(), (2, 4));
    assert_eq!(plan.width(1, 0, true, 5, 0, None).unwrap(), (4, 4));
    assert_eq!(plan.width(9, 0, true, 5, 0, None).unwrap_err().kind, ErrorKind::NotFound);
    let again = Plan::from_json(&plan.to_json().unwrap()).unwrap();
    assert_eq!(again.to_json().unwrap(), plan.try_clone().unwrap().to_json().unwrap());
    let other = Geometry::uniform(3, Layer::new(4, 2, 64));
    assert_eq!(plan.validate(Some(&other)).unwrap_err().kind, ErrorKind::Mismatch);
    assert_eq!(Plan::from_json("{").err().unwrap().kind, ErrorKind::Corrupt);
    let short = KeyRule { channel_bits: Some(vec![2; 3]), ..KeyRule::new(2) };
    assert!(plan.set_key(Which::Only(0), Which::Only(0), &short).is_err());
    let mut with_sinks = geometry;
    with_sinks.layers[0].sink_logits = Some(vec![0.0; 3]);
    assert_eq!(Plan::preset("fp16", &with_sinks).err().unwrap().kind, ErrorKind::Argument);
}

#[test]
fn capabilities_answer_before_anything_is_made() {
    let context = Context::cpu().unwrap();
    context.supports(&Capability::new(128, 4, 2, 2)).unwrap();
    context.supports(&Capability::new(64, 1, 4, 8).page_tokens(64).element::<F16>()).unwrap();
    let error = context.supports(&Capability::new(100, 4, 2, 2)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
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

#[test]
fn snapshots_go_through_streams_and_files() {
    let rig = Rig::new("kitty-pro");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    step(&cache, &sequence, 0..300).unwrap();
    let options = SnapshotOptions { fingerprint: b"model 7" };
    let mut bytes = Vec::new();
    cache.save(&[&sequence], options, &mut bytes).unwrap();

    let other = rig.cache();
    let loaded = other.load(options, bytes.as_slice(), 1).unwrap();
    assert_eq!(loaded[0].len().unwrap(), 300);
    let wanted = step(&cache, &sequence, 300..301).unwrap();
    assert_eq!(step(&other, &loaded[0], 300..301).unwrap(), wanted);

    let error = other.load(SnapshotOptions::default(), bytes.as_slice(), 1).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Mismatch);
    let error = other.load(options, &bytes[..bytes.len() / 2], 1).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert_eq!(other.load(options, bytes.as_slice(), 0).err().unwrap().kind, ErrorKind::Argument);

    let path = std::env::temp_dir().join(format!("lowkey-{}.lksnap", std::process::id()));
    cache.save_file(&[], options, &path).unwrap();
    assert_eq!(other.load_file(options, &path, 2).unwrap().len(), 1);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(other.load_file(options, &path, 2).err().unwrap().kind, ErrorKind::Io);

    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::new(std::io::ErrorKind::Other, "the disk is full"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = cache.save(&[], options, Full).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(error.sentence.contains("the disk is full"), "{}", error);
}

#[test]
fn key_centers_leave_attention_as_it_is() {
    let mut rig = Rig::new("fp16");
    let plain = {
        let cache = rig.cache();
        let sequence = cache.add_sequence().unwrap();
        step(&cache, &sequence, 0..20).unwrap()
    };
    rig.plan.set_key_centers(Which::All, Which::All, Some(&[0.25; HEAD_DIM])).unwrap();
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    let centered = step(&cache, &sequence, 0..20).unwrap();
    let apart = centered.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-3, "{}", apart);
    drop(sequence);
    drop(cache);
    assert!(rig.plan.set_key_centers(Which::All, Which::All, Some(&[0.0; 3])).is_err());
    rig.plan.set_key_centers(Which::All, Which::All, None).unwrap();
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

/// Of the plan `cocktail`: 32 sinks, then chunks of 32.
const CHUNKS: usize = 12;
const CONTEXT: usize = 32 + CHUNKS * 32;

/// A deferred prompt.
fn deferred<'c>(cache: &'c Cache<'_>) -> Sequence<'c> {
    let mut sequence = cache.add_sequence().unwrap();
    sequence.defer(Defer::Refuse).unwrap();
    step(cache, &sequence, 0..CONTEXT).unwrap();
    sequence
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn chunks_are_scored_by_attention_and_kept_by_class() {
    let rig = Rig::new("cocktail");
    let cache = rig.cache();
    let mut sequence = cache.add_sequence().unwrap();
    sequence.defer(Defer::Pack).unwrap();
    sequence.score_attention(Some(chunks::Attention::new(4, CHUNKS as u32))).unwrap();
    assert_eq!(sequence.attention_scores(12).unwrap_err().kind, ErrorKind::State);
    step(&cache, &sequence, 0..CONTEXT + 4).unwrap();
    let scores = sequence.attention_scores(CHUNKS as u32).unwrap();
    assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-3, "{:?}", scores);
    let (classes, _) = chunks::by_quota(&scores, chunks::Quota::default()).unwrap();
    let before = sequence.chunks().unwrap();
    assert_eq!((before.is_assigned, before.deferral), (false, Defer::Pack));
    sequence.assign_chunks(CONTEXT as u64, &classes, Some(&scores)).unwrap();
    let kept = sequence.chunks().unwrap();
    assert_eq!((kept.is_assigned, kept.deferral), (true, Defer::Off));
    assert_eq!((kept.chunk_tokens, kept.first_token, kept.n_narrower), (32, 32, 0));
    assert!(kept.assigned.iter().flatten().eq(&classes));
    assert!(kept.stored.iter().zip(&kept.assigned).all(|(stored, assigned)| stored >= assigned));
    let mut order = kept.order.clone();
    order.sort_unstable();
    assert!(order.into_iter().eq(0..CHUNKS as u32));
    sequence.score_attention(None).unwrap();
    step(&cache, &sequence, CONTEXT + 4..CONTEXT + 5).unwrap();
}

#[test]
fn retained_originals_give_chunks_their_width_back() {
    let (rig, plain) = (Rig::new("cocktail"), Rig::new("fp16"));
    let (cache, wide) = (rig.cache(), plain.cache());
    let same = wide.add_sequence().unwrap();
    step(&wide, &same, 0..CONTEXT).unwrap();
    let wanted = step(&wide, &same, CONTEXT..CONTEXT + 1).unwrap();
    for budget in [0, 16 << 20] {
        let mut sequence = deferred(&cache);
        sequence.retain_originals(budget).unwrap();
        sequence.assign_chunks(CONTEXT as u64, &[ChunkClass::Low; CHUNKS], None).unwrap();
        sequence.assign_chunks(CONTEXT as u64, &[ChunkClass::High; CHUNKS], None).unwrap();
        let kept = sequence.chunks().unwrap();
        assert_eq!(kept.n_narrower as usize, if budget == 0 { CHUNKS } else { 0 });
        assert_eq!(kept.retained_bytes > 0, budget != 0);
        let out = step(&cache, &sequence, CONTEXT..CONTEXT + 1).unwrap();
        assert_eq!(apart(&out, &wanted) < 1e-3, budget != 0);
    }
}

#[test]
fn misuse_of_chunks_is_refused() {
    let (rig, plain) = (Rig::new("cocktail"), Rig::new("fp16"));
    let (cache, without) = (rig.cache(), plain.cache());
    let mut chunkless = without.add_sequence().unwrap();
    assert_eq!(chunkless.defer(Defer::Refuse).unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(chunkless.chunks().unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(chunkless.retain_originals(1).unwrap_err().kind, ErrorKind::Unsupported);
    let mut sequence = deferred(&cache);
    let low = [ChunkClass::Low; CHUNKS];
    let error = sequence.assign_chunks(CONTEXT as u64, &low, Some(&[1.0])).unwrap_err();
    assert!(error.sentence.contains("1 scores for 12 chunks"), "{}", error);
    let error = sequence.assign_chunks(CONTEXT as u64 + 1, &low, None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    let error = sequence.assign_chunks(CONTEXT as u64 - 1, &low, None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    let error = sequence.assign_chunks(CONTEXT as u64, &low, Some(&[f32::NAN; 12])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Data);
    let far = chunks::Attention { layers: &[9], ..chunks::Attention::new(1, 1) };
    assert_eq!(sequence.score_attention(Some(far)).unwrap_err().kind, ErrorKind::NotFound);
    assert!(!sequence.chunks().unwrap().is_assigned);
}

#[test]
fn chunks_are_scored_without_a_cache() {
    let embeddings = [1f32, 0.0, 0.0, 2.0, 3.0, 3.0];
    let of = |data| Tensor::new(data, 1, 2).unwrap();
    let scores = chunks::cosine(of(&embeddings), of(&[5.0, 0.0])).unwrap();
    assert!(apart(&scores, &[1.0, 0.0, 0.5f32.sqrt()]) < 1e-6, "{:?}", scores);
    let context = Context::cpu().unwrap();
    let mut on_device = [0f32; 3];
    let out = TensorMut::new(&mut on_device, 1, 1).unwrap();
    chunks::score_cosine(&context, None, of(&embeddings), of(&[5.0, 0.0]), out).unwrap();
    assert!(apart(&on_device, &scores) < 1e-6);
    let mut short = [0f32; 2];
    let out = TensorMut::new(&mut short, 1, 1).unwrap();
    let refused = chunks::score_cosine(&context, None, of(&embeddings), of(&[5.0, 0.0]), out);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Argument);
    let zeros = chunks::cosine(of(&embeddings), of(&[0.0, 0.0])).unwrap_err();
    assert_eq!(zeros.kind, ErrorKind::Data);
    assert!(chunks::cosine(of(&embeddings), Tensor::new(&[1f32], 1, 1).unwrap()).is_err());

    let bm25 = chunks::Bm25::default();
    let scores = chunks::score_bm25_of(bm25, &[1, 2, 3, 3], &[0, 2, 4], &[3]).unwrap();
    assert!(scores[1] > scores[0] && scores[0] == 0.0);
    let scores =
        chunks::score_bm25(chunks::Bm25 { chunk_tokens: 3, ..bm25 }, &[1; 8], &[1]).unwrap();
    assert_eq!(scores.len(), 2);
    for starts in [&[0u64, 5][..], &[0, 3, 2], &[]] {
        let error = chunks::score_bm25_of(bm25, &[1, 2, 3, 4], starts, &[3]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Argument);
    }
    let whole = chunks::Bm25 { chunk_tokens: 0, ..bm25 };
    assert_eq!(chunks::score_bm25(whole, &[1; 8], &[1]).unwrap_err().kind, ErrorKind::Argument);

    let sorted = chunks::by_thresholds(&[0.0, 0.5, 1.0], 0.25, 0.25).unwrap();
    assert_eq!(sorted.classes, [ChunkClass::Low, ChunkClass::Middle, ChunkClass::High]);
    assert_eq!((sorted.low, sorted.high), (0.25, 0.75));
    let error = chunks::by_thresholds(&[0.0, f32::NAN], 0.25, 0.25).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Data);
    let budget =
        chunks::QuotaBudget { budget_bytes: 12, low_bytes: 2, middle_bytes: 4, high_bytes: 8 };
    let quota = chunks::Quota { block_chunks: 1, budget: Some(budget), ..Default::default() };
    let (classes, n_bytes) = chunks::by_quota(&[0.0, 1.0, 0.5], quota).unwrap();
    assert_eq!((classes[1], n_bytes), (ChunkClass::High, 12));
    let error = chunks::by_quota(&[0.0; 9], quota).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Budget);
}

#[test]
fn plans_have_chunks_and_key_scales() {
    let geometry = geometry();
    let mut plan = Plan::preset("cocktail", &geometry).unwrap();
    assert_eq!(plan.chunks().unwrap(), Some(ChunkRule::default()));
    assert_eq!(plan.width(0, 0, false, 0, 0, Some(ChunkClass::Low)).unwrap(), (2, 2));
    assert_eq!(plan.width(0, 0, false, 0, 0, Some(ChunkClass::High)).unwrap(), (16, 16));
    let mix = ChunkMix { n_low: 8, n_middle: 4, n_high: 0 };
    let size = plan.chunk_bytes(CONTEXT as u64, 1, 256, mix).unwrap();
    assert_eq!((size.n_pages, size.recent_bytes), (3, 32 * 2 * 2 * 2 * 64 * 2));
    let error = plan.chunk_bytes(CONTEXT as u64 - 1, 1, 256, mix).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    let narrow = ChunkRule { low_bits: 3, ..ChunkRule::default() };
    assert_eq!(plan.set_chunks(Some(narrow)).err().unwrap().kind, ErrorKind::Argument);
    plan.set_chunks(None).unwrap();
    assert_eq!(plan.chunks().unwrap(), None);

    let mut rig = Rig::new("fp16");
    rig.plan.set_key_scales(Which::All, Which::All, Some(&[4.0; HEAD_DIM])).unwrap();
    let (plain, cache) = (Rig::new("fp16"), rig.cache());
    let plain = plain.cache();
    let (a, b) = (cache.add_sequence().unwrap(), plain.add_sequence().unwrap());
    let scaled = step(&cache, &a, 0..20).unwrap();
    assert!(apart(&scaled, &step(&plain, &b, 0..20).unwrap()) < 1e-3);
    drop(a);
    drop(cache);
    for wrong in [&[0.0; HEAD_DIM][..], &[1.0; 3]] {
        let error = rig.plan.set_key_scales(Which::All, Which::All, Some(wrong)).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Argument);
    }
    rig.plan.set_key_scales(Which::All, Which::All, None).unwrap();
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
