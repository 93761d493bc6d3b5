/* lowkey: measuring costs on a host's own model.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A cost is how far a model's predictions move when the keys, or the values, of one KV head are
 * packed at 2 bits and all else is exact. lk_calibrator_auto() weighs errors by costs. A cost run
 * lists what has to be measured and adds it up; the host runs its model, in this order:
 *
 *   1. lk_cost_run_create() for the model's geometry, and lk_cost_texts() for the documents. The
 *      host cuts each document into a context of n tokens (2048, at least sink_tokens +
 *      recent_tokens + 128) and n / 4 tokens after it that are predicted. Their keys and queries
 *      belong into the calibrator, next to those of other text.
 *   2. lk_cost_run_next() gives trials of one document. A trial is that document with one part
 *      packed: the keys or the values of one KV head, with a clip.
 *   3. The host makes a cache for each trial from lk_cost_run_plan(), and one from the plan of
 *      LK_COST_REFERENCE, and appends the context to all of them. A step attends to its own tokens
 *      at 16 bits, so that one pass over the context gives the keys and values of every cache.
 *      Then it predicts the tokens after the context on each cache, in one step that it discards.
 *   4. lk_divergence() compares a trial's logits with those of the reference;
 *      lk_cost_run_add() takes the number. The host may save lk_cost_run_to_bytes() here, and go
 *      on later with lk_cost_run_resume().
 *   5. When lk_cost_run_next() gives no more trials, lk_cost_run_finish() puts the costs into a
 *      calibrator, from which lk_calibrator_auto() makes a plan.
 *
 * `lowkey calibrate --costs` is such a host, examples/llama/costs.cpp another one. A cost run needs
 * no context and no device. */
#ifndef LOWKEY_COSTS_H
#define LOWKEY_COSTS_H

#include <lowkey/statistics.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A measurement of costs. A call with a non-const run needs it alone; const calls may run at the
 * same time. */
typedef struct lk_cost_run lk_cost_run;

#define LK_COST_TEXTS 4              /* kinds of text that lk_cost_texts() makes */
#define LK_COST_REFERENCE UINT32_MAX /* in place of a trial: nothing is packed */

/* Options of a cost run. Start from lk_cost_options_init(). */
typedef struct lk_cost_options {
    uint32_t size;          /* sizeof(lk_cost_options) */
    uint32_t n_kinds;       /* kinds of text, 1 to 64; LK_COST_TEXTS from init */
    uint32_t n_documents;   /* of each kind, 1 to 1000; 2 from init */
    uint32_t clips;         /* 1, from init: whole ranges and the LK_COST_CLIPS clips; 0: whole
                             * ranges alone, a third of the trials; plans have no clips then */
    uint32_t sink_tokens;   /* first tokens at 16 bits; 32 from init */
    uint32_t recent_tokens; /* last tokens at 16 bits, at least; 128 from init */
    uint64_t fingerprint;   /* names the weights, the documents and their lengths, so that
                             * lk_cost_run_resume() refuses divergences of others; the host chooses
                             * it; 0 from init */
} lk_cost_options;

/* Set the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_cost_options_init(lk_cost_options *options, size_t struct_bytes);

/* A document with one part packed at 2 bits: keys per channel in groups of 128 tokens, values per
 * token in groups of 128 channels. Start from lk_cost_trial_init(). */
typedef struct lk_cost_trial {
    uint32_t size;     /* sizeof(lk_cost_trial) */
    uint32_t document; /* kind x n_documents + document of the kind, both from 0 */
    uint32_t layer;    /* of the part */
    uint32_t kv_head;  /* of the part */
    uint32_t is_value; /* 0 keys, 1 values */
    float clip;        /* share of its range that a group keeps: 1, 0.85 or 0.7 */
} lk_cost_trial;

/* Set zeros and the size. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_cost_trial_init(lk_cost_trial *trial, size_t struct_bytes);

/* Create a cost run in which nothing is measured. Its trials are numbered from 0, in the order
 * [document][layer][KV head][keys, values][clip].
 *
 * geometry  of the model; read during the call
 * options   NULL for the defaults
 * out       owned by the caller, destroyed by lk_cost_run_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT (also more than 2^24 trials: fewer documents, or no clips),
 * LK_E_UNSUPPORTED (a latent layer), LK_E_NOMEM. */
LK_API lk_status lk_cost_run_create(const lk_geometry *geometry, const lk_cost_options *options,
                                    lk_cost_run **out);

/* Destroy *run and set it to NULL. run and *run may be NULL. */
LK_API void lk_cost_run_destroy(lk_cost_run **run);

/* Hand out trials that have no divergence yet, lowest numbers first, all of one document. Trials
 * that were handed out before come again when no others are left, so a host may drop a batch that
 * failed, and several threads may each measure a batch.
 *
 * capacity  at least 1: how many caches the host runs together
 * trials    [capacity], the first n_trials are set
 * n_trials  set to the number of trials; 0 when every trial has a divergence
 *
 * Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_cost_run_next(lk_cost_run *run, uint32_t capacity, uint32_t *trials,
                                  uint32_t *n_trials);

/* Describe a trial.
 *
 * trial  from lk_cost_run_next(), or any other number of the run
 * out    filled up to its size
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (trial). */
LK_API lk_status lk_cost_run_get_trial(const lk_cost_run *run, uint32_t trial, lk_cost_trial *out);

/* Make the plan of a trial. It does not depend on the document: trials that differ in the document
 * alone may share a cache, emptied between them.
 *
 * trial  as lk_cost_run_get_trial(), or LK_COST_REFERENCE
 * out    owned by the caller, destroyed by lk_plan_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (trial), LK_E_NOMEM. */
LK_API lk_status lk_cost_run_plan(const lk_cost_run *run, uint32_t trial, lk_plan **out);

/* Compute how far predictions are from exact ones: the sum over rows of the Kullback-Leibler
 * divergence of softmax(other) from softmax(exact). Rows may come in several calls whose results
 * the host adds, in the order of the rows. Any thread.
 *
 * exact         [n_rows][1][n_vocabulary] logits of the reference, F16, BF16 or F32, in host
 *               memory; a row is a token of the tensor. A minus infinity is a token that cannot
 *               come
 * other         logits of the trial, of the same shape
 * n_rows        at least 1
 * n_vocabulary  at least 1
 * bits          set to the divergence; rounding may make that of equal predictions less than 0
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (a NaN or an infinity, or a token that cannot come in `other`
 * but in `exact`; the sentence names the row: the model's numbers overflow, leave its part out). */
LK_API lk_status lk_divergence(const lk_tensor *exact, const lk_tensor *other, uint32_t n_rows,
                               uint32_t n_vocabulary, double *bits);

/* Take the divergence of a trial: that of all predictions of its document.
 *
 * trial  handed out by lk_cost_run_next() of this run, and without a divergence
 * bits   from -1, for rounding, to 1e9, in any unit that is the same for all trials
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_NOT_FOUND (trial), LK_E_STATE (the trial was not
 * handed out, or has a divergence), LK_E_DATA (bits is out of range or a NaN). */
LK_API lk_status lk_cost_run_add(lk_cost_run *run, uint32_t trial, double bits);

/* Count trials. Both pointers may be NULL.
 *
 * n_measured  set to the trials that have a divergence
 * n_trials    set to all trials of the run
 *
 * Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_cost_run_get_counts(const lk_cost_run *run, uint32_t *n_measured,
                                        uint32_t *n_trials);

/* Put the costs of all layers into a calibrator, as lk_calibrator_set_costs() and, with clips,
 * lk_calibrator_set_clip_costs() do. A cost is the sum over the kinds of text; the sum over the
 * documents of a kind counts 0 when it is negative.
 *
 * calibrator  of the run's geometry
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_STATE (trials are left: measure them),
 * LK_E_MISMATCH (geometry; the sentence names the first difference), LK_E_NOMEM. */
LK_API lk_status lk_cost_run_finish(const lk_cost_run *run, lk_calibrator *calibrator);

/* Write the divergences of a run, so that a measurement can go on in another process. Equal
 * divergences give equal bytes. docs/costs.md has the layout.
 *
 * buffer        [capacity_bytes]; may be NULL with capacity 0
 * needed_bytes  set to 64 and 8 for each trial
 *
 * Errors: LK_E_ARGUMENT (also a capacity that is not 0 and too small: needed_bytes is set, nothing
 * is written). */
LK_API lk_status lk_cost_run_to_bytes(const lk_cost_run *run, void *buffer, size_t capacity_bytes,
                                      size_t *needed_bytes);

/* Take divergences from untrusted bytes of lk_cost_run_to_bytes(). Trials of the run that have a
 * divergence keep it, so the bytes of several runs of equal options can be joined. The call
 * allocates nothing.
 *
 * bytes  [n_bytes], of any alignment; read during the call
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_CORRUPT, LK_E_MISMATCH (another version,
 * geometry, fingerprint or other options: start anew, or give the bytes to their own run). */
LK_API lk_status lk_cost_run_resume(lk_cost_run *run, const void *bytes, size_t n_bytes);

/* Make documents on which costs show: running text, the text itself; repeated words, lists of 60
 * words, each four times over; values of words, 40 lines of a word and a number, four times in
 * other orders; and assignments of numbers to words and of words to words (docs/costs.md).
 * All words come from the text. A host without a text in Latin letters takes another text's words,
 * or documents of its own. Equal arguments give equal bytes. Any thread.
 *
 * text            [text_bytes], UTF-8, with at least 60 different words of 3 to 8 letters from a to
 *                 z; read during the call
 * n_documents     of each kind, 1 to 1000
 * document_bytes  of a document, 1 to 2^24. A document begins and ends anywhere, within a character
 *                 too: about 8 bytes for each token that the host wants suffice, of which it takes
 *                 the first ones
 * seed            of the random choices
 * buffer          [capacity_bytes]; may be NULL with capacity 0
 * needed_bytes    set to LK_COST_TEXTS x n_documents x document_bytes: the documents in the order
 *                 of lk_cost_trial.document, one after another, without a zero
 *
 * Errors: LK_E_ARGUMENT (also a text of too few words, and a capacity that is not 0 and too small:
 * needed_bytes is set, nothing is written), LK_E_NOMEM (the contents of buffer are undefined). */
LK_API lk_status lk_cost_texts(const char *text, size_t text_bytes, uint32_t n_documents,
                               uint32_t document_bytes, uint64_t seed, char *buffer,
                               size_t capacity_bytes, size_t *needed_bytes);

#ifdef __cplusplus
}
#endif
#endif
