/* A program of someone else: built through pkg-config against the installed library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <lowkey/lowkey.h>
#include <stdio.h>

int main(void) {
    lk_context *context = NULL;
    lk_plan *plan = NULL;
    lk_layer layer;
    lk_geometry geometry;
    lk_plan_size size;
    lk_layer_init(&layer, sizeof layer);
    lk_geometry_init(&geometry, sizeof geometry);
    lk_plan_size_init(&size, sizeof size);
    layer.n_query_heads = 32, layer.n_kv_heads = 8, layer.head_dim = 128;
    geometry.n_layers = 1, geometry.layers = &layer;
    if (lk_context_open(NULL, LK_ABI_VERSION, &context) ||
        lk_plan_preset("kivi2", &geometry, &plan) || lk_plan_bytes(plan, 8192, 1, 1, &size))
        return 1;
    printf("lowkey %s: %.3f bits per value\n", lk_version(), size.bits_per_value);
    lk_plan_destroy(&plan);
    return lk_context_close(&context) != LK_OK;
}
