/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 256, WIDTH = 256, HIDDEN = 768 };
enum { Q_WIDTH = N_QUERY_HEADS * HEAD_DIM, KV_WIDTH = N_KV_HEADS * HEAD_DIM };
enum { INPUT_NORM, Q_ROWS, K_ROWS, V_ROWS, O_ROWS, MLP_NORM, GATE, UP, DOWN, N_WEIGHTS };

static const struct {
    const char *name;
    size_t n_in, n_out; /* n_in 1: a list */
    int has_bias;
} shapes[N_WEIGHTS] = {
    {"input_layernorm", 1, WIDTH, 0},         {"self_attn.q_proj", WIDTH, Q_WIDTH, 1},
    {"self_attn.k_proj", WIDTH, KV_WIDTH, 1}, {"self_attn.v_proj", WIDTH, KV_WIDTH, 0},
    {"self_attn.o_proj", Q_WIDTH, WIDTH, 0},  {"post_attention_layernorm", 1, WIDTH, 0},
    {"mlp.gate_proj", WIDTH, HIDDEN, 0},      {"mlp.up_proj", WIDTH, HIDDEN, 0},
    {"mlp.down_proj", HIDDEN, WIDTH, 0},
};
static char file[17 << 20]; /* a zero after its bytes ends each search for a name */
static size_t file_bytes;
static float *weights[N_LAYERS][N_WEIGHTS], *biases[N_LAYERS][N_WEIGHTS];
static float *embedding, *final_norm, *head;
static const char *failure;

/* Of one step, [n_tokens][...]. */
static float x[MAX_TOKENS * WIDTH], y[MAX_TOKENS * WIDTH], logits[VOCABULARY];
static float q[MAX_TOKENS * Q_WIDTH], k[MAX_TOKENS * KV_WIDTH], v[MAX_TOKENS * KV_WIDTH];
static float heads[MAX_TOKENS * Q_WIDTH], gate[MAX_TOKENS * HIDDEN], up[MAX_TOKENS * HIDDEN];

static float from_half(unsigned half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const float value =
        exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    return half >> 15 ? -value : value;
}

/* The file is the length of its header in 8 bytes, JSON with places of tensors, and their data.
 * Rows [n_out][n_in] become [n_in][n_out], so that outputs are computed side by side. */
static float *load(const char *name, const char *part, size_t n_in, size_t n_out) {
    char key[96];
    unsigned long long header = 0, begin = 0, end = 0;
    const size_t n = n_in * n_out;
    for (int i = 7; i >= 0; --i)
        header = header << 8 | (unsigned char)file[i];
    snprintf(key, sizeof key, "\"%s.%s\":{\"dtype\":\"F16\"", name, part);
    const char *at = strstr(file + 8, key);
    at = at ? strstr(at, "\"data_offsets\":") : NULL;
    if (!at || sscanf(at, "\"data_offsets\":[%llu,%llu]", &begin, &end) != 2 || begin > end ||
        end - begin != 2 * n || header > file_bytes - 8 || end > file_bytes - 8 - header) {
        failure = "the file is not of this model";
        return NULL;
    }
    float *values = malloc(n * sizeof *values);
    if (!values)
        failure = "out of memory";
    const unsigned char *bytes = (const unsigned char *)file + 8 + header + begin;
    for (size_t i = 0; values && i < n; ++i, bytes += 2)
        values[i % n_in * n_out + i / n_in] = from_half(bytes[0] | (unsigned)bytes[1] << 8);
    return values;
}

const char *model_load(const char *path) {
    FILE *stream = fopen(path, "rb");
    char name[64];
    if (!stream)
        return "the file cannot be opened";
    file_bytes = fread(file, 1, sizeof file - 1, stream);
    if (fclose(stream) || file_bytes < 8)
        return "the file cannot be read";
    for (int l = 0; l < N_LAYERS; ++l) {
        for (int w = 0; w < N_WEIGHTS; ++w) {
            snprintf(name, sizeof name, "model.layers.%d.%s", l, shapes[w].name);
            weights[l][w] = load(name, "weight", shapes[w].n_in, shapes[w].n_out);
            biases[l][w] = shapes[w].has_bias ? load(name, "bias", 1, shapes[w].n_out) : NULL;
        }
    }
    embedding = load("model.embed_tokens", "weight", 1, VOCABULARY * WIDTH);
    final_norm = load("model.norm", "weight", 1, WIDTH);
    head = load("lm_head", "weight", WIDTH, VOCABULARY);
    return failure;
}

/* sums += row W */
static void multiply(const float *row, size_t n_in, const float *weight, size_t n_out,
                     float *sums) {
    for (size_t i = 0; i < n_in; ++i)
        for (size_t o = 0; o < n_out; ++o)
            sums[o] += row[i] * weight[i * n_out + o];
}

static void clear(float *to, size_t n_tokens, size_t width, const float *bias) {
    for (size_t i = 0; i < n_tokens * width; ++i)
        to[i] = bias ? bias[i % width] : 0;
}

/* to += from W, for all tokens. */
static void add(int layer, int w, const float *from, float *to, size_t n_tokens) {
    for (size_t t = 0; t < n_tokens; ++t)
        multiply(from + t * shapes[w].n_in, shapes[w].n_in, weights[layer][w], shapes[w].n_out,
                 to + t * shapes[w].n_out);
}

/* to = from W + b */
static void project(int layer, int w, const float *from, float *to, size_t n_tokens) {
    clear(to, n_tokens, shapes[w].n_out, biases[layer][w]);
    add(layer, w, from, to, n_tokens);
}

static void normalise(const float *from, const float *weight, size_t n_tokens, float *to) {
    for (size_t t = 0; t < n_tokens; ++t, from += WIDTH, to += WIDTH) {
        float squares = 0;
        for (int i = 0; i < WIDTH; ++i)
            squares += from[i] * from[i];
        for (int i = 0; i < WIDTH; ++i)
            to[i] = from[i] / sqrtf(squares / WIDTH + 1e-6f) * weight[i];
    }
}

/* RoPE turns channels i and i + HEAD_DIM / 2 of every head. */
static void turn(float *rows, size_t n_tokens, size_t n_heads, uint64_t first) {
    for (size_t row = 0; row < n_tokens * n_heads; ++row) {
        for (size_t i = 0; i < HEAD_DIM / 2; ++i) {
            const double position = (double)(first + row / n_heads);
            const double angle = position * pow(1e5, -2.0 * (double)i / HEAD_DIM);
            const float c = (float)cos(angle), s = (float)sin(angle);
            float *low = rows + row * HEAD_DIM + i, *high = low + HEAD_DIM / 2;
            const float a = *low, b = *high;
            *low = a * c - b * s;
            *high = b * c + a * s;
        }
    }
}

unsigned char model_run(const unsigned char *tokens, size_t n_tokens, uint64_t first,
                        attention_fn *attention, void *user) {
    int best = 0;
    for (size_t t = 0; t < n_tokens; ++t)
        memcpy(x + t * WIDTH, embedding + tokens[t] * WIDTH, WIDTH * sizeof *x);
    for (int l = 0; l < N_LAYERS; ++l) {
        normalise(x, weights[l][INPUT_NORM], n_tokens, y);
        project(l, Q_ROWS, y, q, n_tokens);
        project(l, K_ROWS, y, k, n_tokens);
        project(l, V_ROWS, y, v, n_tokens);
        turn(q, n_tokens, N_QUERY_HEADS, first);
        turn(k, n_tokens, N_KV_HEADS, first);
        attention(user, (uint32_t)l, q, k, v, heads);
        add(l, O_ROWS, heads, x, n_tokens);
        normalise(x, weights[l][MLP_NORM], n_tokens, y);
        project(l, GATE, y, gate, n_tokens);
        project(l, UP, y, up, n_tokens);
        for (size_t i = 0; i < n_tokens * HIDDEN; ++i)
            gate[i] *= up[i] / (1 + expf(-gate[i]));
        add(l, DOWN, gate, x, n_tokens);
    }
    normalise(x + (n_tokens - 1) * WIDTH, final_norm, 1, y);
    clear(logits, 1, VOCABULARY, NULL);
    multiply(y, WIDTH, head, VOCABULARY, logits);
    for (int i = 1; i < VOCABULARY; ++i)
        best = logits[i] > logits[best] ? i : best;
    return (unsigned char)best;
}
