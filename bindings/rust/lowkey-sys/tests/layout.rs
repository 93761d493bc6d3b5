// SPDX-License-Identifier: Apache-2.0
//! Compares every struct, field and constant with the installed headers: a C program that is made
//! from the crate's own source prints sizes, offsets and values.
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

const SOURCE: &str = concat!(
    include_str!("../src/auto.rs"),
    include_str!("../src/base.rs"),
    include_str!("../src/cache.rs"),
    include_str!("../src/chanmix.rs"),
    include_str!("../src/chunks.rs"),
    include_str!("../src/context.rs"),
    include_str!("../src/costs.rs"),
    include_str!("../src/merge.rs"),
    include_str!("../src/plan.rs"),
    include_str!("../src/pmkvq.rs"),
    include_str!("../src/rope.rs"),
    include_str!("../src/snapshot.rs"),
    include_str!("../src/state.rs"),
    include_str!("../src/statistics.rs"),
    include_str!("../src/step.rs"),
    include_str!("../src/vulkan.rs"),
);

/// Structs of the source with their fields.
fn structs() -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    let mut lines = SOURCE.lines();
    while let Some(line) = lines.next() {
        let name = match line.strip_prefix("pub struct ") {
            Some(rest) => rest.trim_end_matches(" {").to_string(),
            None => continue,
        };
        let fields = lines
            .by_ref()
            .take_while(|line| *line != "}")
            .filter_map(|line| line.trim().strip_prefix("pub "))
            .map(|field| field.split(':').next().unwrap().to_string())
            .collect();
        found.insert(name, fields);
    }
    found
}

/// Constants of the source.
fn constants() -> Vec<String> {
    SOURCE
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("LK_"))
        .map(String::from)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

fn headers() -> Vec<String> {
    if let Ok(flags) = env::var("LOWKEY_CFLAGS") {
        return flags.split_whitespace().map(String::from).collect();
    }
    let found = Command::new("pkg-config")
        .args(["--cflags", "lowkey"])
        .output()
        .expect("pkg-config, or LOWKEY_CFLAGS");
    String::from_utf8(found.stdout).unwrap().split_whitespace().map(String::from).collect()
}

/// The C compiler with the headers' flags.
fn compiler() -> Command {
    let named = env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut words = named.split_whitespace(); // "ccache cc" is two
    let mut command = Command::new(words.next().expect("CC names a compiler"));
    command.args(words).args(headers());
    command
}

fn values_in_c() -> BTreeMap<String, i64> {
    let mut text = String::from(
        "#include <lowkey/lowkey.h>\n#include <stdio.h>\n\
         #define PRINT(name, value) printf(\"%s %lld\\n\", name, (long long)(value))\n\
         int main(void) {\n",
    );
    for (name, fields) in structs() {
        writeln!(text, "PRINT(\"{0}\", sizeof(struct {0}));", name).unwrap();
        for field in fields {
            writeln!(text, "PRINT(\"{0}.{1}\", offsetof(struct {0}, {1}));", name, field).unwrap();
        }
    }
    for name in constants() {
        writeln!(text, "PRINT(\"{0}\", {0});", name).unwrap();
    }
    text.push_str("return 0;\n}\n");
    let folder = env::temp_dir().join(format!("lowkey-layout-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&source, text).unwrap();
    let built = compiler().arg("-o").args([&program, &source]).status().expect("a C compiler");
    assert!(built.success(), "the crate declares names that the headers do not have");
    let found = Command::new(&program).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    String::from_utf8(found.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let (name, value) = line.split_once(' ').unwrap();
            (name.to_string(), value.parse().unwrap())
        })
        .collect()
}

macro_rules! layout_of {
    ($into:ident, $($name:ident { $($field:ident),* $(,)? })*) => {$(
        $into.insert(stringify!($name).into(), std::mem::size_of::<lowkey_sys::$name>() as i64);
        let value = std::mem::MaybeUninit::<lowkey_sys::$name>::uninit();
        let base = value.as_ptr();
        $(
            // SAFETY: addr_of! computes an address inside of `value` and reads nothing.
            let field = unsafe { std::ptr::addr_of!((*base).$field) };
            $into.insert(concat!(stringify!($name), ".", stringify!($field)).into(),
                         field as i64 - base as i64);
        )*
    )*};
}
macro_rules! values_of {
    ($into:ident, $($name:ident)*) => {$(
        $into.insert(stringify!($name).into(), lowkey_sys::$name as i64);
    )*};
}

fn values_in_rust() -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    layout_of!(found,
        lk_tensor { size, dtype, memory, flags, data, buffer, offset_bytes, token_stride,
                    head_stride }
        lk_queue { size, kind, handle, wait_semaphore, wait_value, signal_semaphore, signal_value }
        lk_device_info { size, backend, index, n_threads, memory_bytes, free_bytes, name,
                         features }
        lk_context_desc { size, backend, device_index, n_threads, cpu_mask, log_level, log,
                          log_user, alloc, free, alloc_user, vulkan, parallel_for, parallel_for_user }
        lk_capability { size, head_dim, group_size, key_bits, value_bits, page_tokens, memory,
                        dtype, queue, value_dim, is_latent }
        lk_vulkan_desc { size, mask, validation, api_version, get_instance_proc_addr, instance,
                         physical_device, device, queue, queue_family, n_extensions, extensions,
                         features, lock_queue, unlock_queue, lock_user, pipeline_cache,
                         pipeline_cache_bytes }
        lk_layer { size, n_query_heads, n_kv_heads, head_dim, window_tokens, window_sink_tokens,
                   scale, soft_cap, sink_logits, kv_layer, reserved, value_dim, flags }
        lk_geometry { size, n_layers, layers }
        lk_key_rule { size, bits, axis, group, boost_channels, boost_bits, boost_ranking,
                      channel_bits, one_bit, clip }
        lk_value_rule { size, bits, group, one_bit, clip }
        lk_chunk_mix { size, n_low, n_middle, n_high }
        lk_chunk_rule { size, chunk_tokens, low_bits, middle_bits, high_bits, alpha, beta, reorder,
                        hold }
        lk_plan_size { size, n_blocks, bits_per_value, bytes_per_token, fp16_bytes, payload_bytes,
                       metadata_bytes, recent_bytes, table_bytes, cache_bytes }
        lk_cache_desc { size, max_sequences, max_step_tokens, flags, budget_bytes, slab_bytes,
                        max_budget_bytes, sequence_limit_bytes, pressure, pressure_user,
                        state_bytes, n_states, state_versions, state_interval_tokens, reserved }
        lk_pressure { size, capacity, shortfall_bytes, reserved_bytes, budget_bytes, ids, n_ids,
                      reserved }
        lk_chanmix_layout { size, head_dim, token_bytes, reserved, channel, bits, byte, shift }
        lk_cache_stats { size, n_sequences, n_tokens, budget_bytes, reserved_bytes, payload_bytes,
                         metadata_bytes, recent_bytes, table_bytes, workspace_bytes, free_bytes,
                         pages_packed, pages_dequantized, values_saturated, device_bytes, shared_bytes,
                         pages_copied, pages_shrunk, sequences_evicted, fragmented_bytes,
                         plane_bytes, state_bytes }
        lk_state { size, memory, data, buffer, offset_bytes, bytes }
        lk_snapshot_desc { size, fingerprint_bytes, fingerprint, progress, progress_user }
        lk_snapshot_info { size, version, n_sequences, n_formats, total_bytes, n_tokens, n_blocks,
                           geometry_hash, plan_hash, fingerprint_bytes, fingerprint, reserved,
                           n_state_versions, version_bytes, n_states, reserved2 }
        lk_snapshot_sequence { size, flags, id, n_tokens, n_blocks, n_shared_blocks }
        lk_snapshot_format { size, is_value, head_dim, page_tokens, channels, n_pages,
                            payload_bytes, metadata_bytes }
        lk_probe { size, prefix_tokens, period_tokens, sink_tokens, local_tokens }
        lk_bm25 { size, chunk_tokens, k1, b }
        lk_chunk_quota { size, block_chunks, low_share, high_share, budget_bytes, low_bytes,
            middle_bytes, high_bytes }
        lk_chunk_attention { size, chunk_tokens, n_chunks, n_query_tokens, n_layers, reserved, layers }
        lk_chunks_info { size, n_chunks, chunk_tokens, is_assigned, deferral, n_low, n_middle,
                         n_high, n_wider, n_narrower, first_token, retained_bytes, n_pending, reserved }
        lk_rope { size, pairing, channels, reserved, base, frequencies }
        lk_scale_search { size, pairing, channels, key_bits, value_bits, query_step }
        lk_pmkvq { size, n_widths, widths, sensitivity, scope, separate_values, key_axis, group, key_scales,
            sink_tokens, recent_tokens, budget_bytes, budget_tokens, budget_sequences,
            budget_step_tokens, layer_budgets, reserved }
        lk_chanmix { size, retrieval, scope, outliers, centers, metadata, group, sink_tokens,
                     recent_tokens, retrieval_share, budget_bytes, budget_tokens,
                     budget_sequences, budget_step_tokens, one_bit, reserved }
        lk_cost_options { size, n_kinds, n_documents, clips, sink_tokens, recent_tokens, fingerprint }
        lk_cost_trial { size, document, layer, kv_head, is_value, clip }
        lk_auto { size, centers, sink_tokens, recent_tokens, bits_per_value, budget_bytes,
                  budget_tokens, budget_sequences, budget_step_tokens }
    );
    values_of!(found,
        LK_ABI_MAJOR LK_ABI_MINOR LK_ABI_VERSION LK_MAX_STRUCT_BYTES LK_OK LK_E_ARGUMENT LK_E_STATE LK_E_NOT_FOUND
        LK_E_UNSUPPORTED LK_E_NOMEM LK_E_BUDGET LK_E_CORRUPT LK_E_MISMATCH LK_E_DATA LK_E_BUSY
        LK_E_IO LK_E_DEVICE LK_E_INTERNAL LK_F16 LK_BF16 LK_F32 LK_MEMORY_HOST LK_MEMORY_CUDA
        LK_MEMORY_VULKAN LK_QUEUE_CUDA_STREAM LK_QUEUE_VULKAN_SUBMIT LK_QUEUE_VULKAN_RECORD
        LK_BACKEND_CPU LK_BACKEND_CUDA LK_BACKEND_VULKAN LK_LOG_ERROR LK_LOG_WARNING LK_LOG_INFO
        LK_LOG_DEBUG LK_CPU_REFERENCE_ONLY LK_CPU_NO_AVX2 LK_CPU_NO_AVX512 LK_CPU_NO_NEON
        LK_VULKAN_NO_FLOAT16 LK_VULKAN_NO_SUBGROUP LK_VULKAN_NO_INTEGER_DOT
        LK_VULKAN_NO_COOPERATIVE_MATRIX LK_VULKAN_NO_TIMELINE LK_ALL LK_OWN_KV LK_LAYER_LATENT LK_AXIS_CHANNEL
        LK_AXIS_TOKEN
        LK_RANKING_KEY LK_RANKING_QUERY_RANGE LK_METADATA_F16 LK_METADATA_F8 LK_ROTATION_NONE
        LK_ROTATION_HADAMARD LK_DRAFT_TOKENS LK_SPANS_WINDOWED
        LK_MERGE_SPLITS LK_ALL_TOKENS LK_FINGERPRINT_BYTES LK_STATISTIC_KEY_MIN
        LK_STATISTIC_KEY_MAX LK_STATISTIC_KEY_RANGE LK_STATISTIC_KEY_MEAN
        LK_STATISTIC_KEY_MAGNITUDE LK_STATISTIC_QUERY_MAGNITUDE LK_CHANNEL_SUBNORMAL
        LK_CHANNEL_NORMAL LK_CHANNEL_OUTLIER LK_SCOPE_HEAD LK_SCOPE_LAYER LK_RETRIEVAL_NONE
        LK_RETRIEVAL_KEY LK_RETRIEVAL_KEY_VALUE LK_ONE_BIT_DEVIATION LK_ONE_BIT_RANGE
        LK_CHUNK_NONE LK_CHUNK_LOW LK_CHUNK_MIDDLE LK_CHUNK_HIGH LK_DEFER_OFF LK_DEFER_REFUSE
        LK_DEFER_PACK
        LK_CACHE_EVICT LK_CACHE_KEEP_WINDOWED LK_PRESSURE_REFUSE LK_PRESSURE_BUDGET LK_PRESSURE_REMOVE
        LK_SENSITIVITY_GRADIENT LK_SENSITIVITY_OUTPUT
        LK_ROPE_HALVES LK_ROPE_INTERLEAVED LK_POSITION_SCALE LK_SCALE_EXPONENTS LK_COST_CLIPS LK_COST_TEXTS LK_COST_REFERENCE
    );
    found
}

#[test]
fn declarations_are_those_of_the_headers() {
    let (c, rust) = (values_in_c(), values_in_rust());
    let differs: Vec<_> = c.iter().filter(|&(name, value)| rust.get(name) != Some(value)).collect();
    assert!(differs.is_empty(), "they differ from the headers, or are not measured: {:?}", differs);
    assert_eq!(c.len(), rust.len(), "the test measures names that the crate does not declare");
}

/// Names with a prefix in a text, if `keep` accepts the text right after the name.
fn names(text: &str, prefix: &str, keep: impl Fn(&str) -> bool) -> BTreeSet<String> {
    text.match_indices(prefix)
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .filter_map(|(at, _)| {
            let rest = &text[at..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            keep(&rest[end..]).then(|| rest[..end].to_string())
        })
        .collect()
}

#[test]
fn everything_in_the_headers_is_declared() {
    let path = env::temp_dir().join(format!("lowkey-names-{}.c", std::process::id()));
    fs::write(&path, "#include <lowkey/lowkey.h>\n").unwrap();
    let read = compiler().args(["-E", "-P"]).arg(&path).output().expect("a C compiler");
    fs::remove_file(&path).unwrap();
    let c = String::from_utf8(read.stdout).unwrap();
    let is_call = |rest: &str| rest.starts_with('(');
    assert_eq!(names(&c, "lk_", is_call), names(SOURCE, "lk_", is_call));
    let known: BTreeSet<_> = structs().into_iter().map(|(name, _)| name).collect();
    let missing: Vec<_> = names(&c, "lk_", |rest| rest.starts_with(" {"))
        .into_iter()
        .filter(|name| !known.contains(name))
        .collect();
    assert!(missing.is_empty(), "structs that the crate does not declare: {:?}", missing);
    let known: BTreeSet<_> = constants().into_iter().collect();
    let missing: Vec<_> = names(&c, "LK_", |rest| rest.starts_with(" ="))
        .into_iter()
        .filter(|name| !known.contains(name))
        .collect();
    assert!(missing.is_empty(), "constants that the crate does not declare: {:?}", missing);
}

#[test]
fn library_has_this_interface() {
    // SAFETY: no arguments.
    let loaded = unsafe { lowkey_sys::lk_abi_version() };
    assert_eq!(loaded >> 16, lowkey_sys::LK_ABI_MAJOR);
    assert!(loaded & 0xffff >= lowkey_sys::LK_ABI_MINOR);
}
