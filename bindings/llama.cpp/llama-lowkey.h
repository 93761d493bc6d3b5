/* lowkey as the KV cache of llama.cpp: the settings of a program, for C and for ctypes.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The settings hold for every llama_context that the process creates after the call. Each call may
 * come from any thread and locks the settings. */
#ifndef LLAMA_LOWKEY_H
#define LLAMA_LOWKEY_H

#include <llama.h>

#ifdef __cplusplus
extern "C" {
#endif

struct lk_plan;

/* Choose the plan of later contexts.
 *
 * name_or_file  a preset's name, such as "kitty-pro", or the path of a plan's JSON; "" or NULL =
 *               llama.cpp's own caches. Without a call the environment variable LLAMA_KV_PLAN, if
 *               it is set, has the same meaning
 *
 * Returns NULL, or one sentence why nothing was changed: no such preset and no such file, or a file
 * that is no plan. The sentence is valid until the thread's next call. */
LLAMA_API const char *llama_lowkey_set_plan(const char *name_or_file);

/* Choose the budget of later contexts: the hard limit of all bytes of each context's cache.
 *
 * bytes  a number such as "4096", "512M" or "2GiB" (powers of 1024); "" or NULL = what the whole
 *        context needs under the plan. Without a call the environment variable LLAMA_KV_BUDGET, if
 *        it is set, has the same meaning
 *
 * Returns as llama_lowkey_set_plan(). */
LLAMA_API const char *llama_lowkey_set_budget(const char *bytes);

/* Gather statistics of the keys, queries and values that a context computes from now on, in batches
 * of one sequence; docs/CALIBRATION.md of lowkey describes them. The first call of a context begins
 * with empty ones.
 *
 * context        runs under a plan; "fp16" leaves keys and values as the model computes them
 * period_tokens  0: the next tokens are a text. Else they are a probe, whose sentence of so many
 *                tokens is repeated, decoded from position 0 on in one micro-batch
 * prefix_tokens  of a probe, before its first sentence
 *
 * Returns as llama_lowkey_set_plan(). */
LLAMA_API const char *llama_lowkey_gather(struct llama_context *context, uint32_t prefix_tokens,
                                          uint32_t period_tokens);

/* Write the statistics of a context to a file, from which lk_calibrator_from_bytes() and `lowkey
 * plan` make plans. Returns as llama_lowkey_set_plan(). */
LLAMA_API const char *llama_lowkey_save_statistics(struct llama_context *context, const char *path);

/* Make an empty cache under each of some plans next to the context's own, in place of those of the
 * last call, to compare what the plans do to the model's predictions (lowkey/costs.h). From now on
 * batches, each of one sequence and one micro-batch, add their tokens to all of these caches, until
 * llama_lowkey_choose_trial() is called. Statistics are not gathered meanwhile.
 *
 * context  its cache is on the CPU; "fp16" leaves keys and values as the model computes them
 * plans    [n_plans], read during the call. Each cache holds one micro-batch's tokens
 * n_plans  0: remove the caches
 *
 * Returns as llama_lowkey_set_plan(). */
LLAMA_API const char *llama_lowkey_make_trials(struct llama_context *context,
                                               const struct lk_plan *const *plans,
                                               uint32_t n_plans);

/* Let later batches attend to the cache of a trial, after its tokens. They leave no tokens there;
 * the context's own cache gets them as ever, and the program removes them with
 * llama_memory_seq_rm() before the next batch.
 *
 * trial  the plan's index in llama_lowkey_make_trials()
 *
 * Returns as llama_lowkey_set_plan(). */
LLAMA_API const char *llama_lowkey_choose_trial(struct llama_context *context, uint32_t trial);

#ifdef __cplusplus
}
#endif
#endif
