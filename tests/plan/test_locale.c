/* Numbers of plans and sentences are those of the C locale in a host that has another: with decimal
 * points of one byte and of several. Locales are compiled by localedef into a folder of their own.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <locale.h>
#include <unistd.h>

#include "plan_test.h"

enum { SKIPPED = 77 };

static const char *const names[] = {"ps_AF", "de_DE"};
static char folder[] = "/tmp/lowkey-locale-XXXXXX";

/* false: there is no localedef or no source of the locale. */
static int compile_locale(const char *name) {
    char command[512];
    snprintf(command, sizeof command,
             "localedef -i %s -f UTF-8 --no-archive %s/%s.UTF-8 2>/dev/null", name, folder, name);
    const int code = system(command);
    snprintf(command, sizeof command, "%s/%s.UTF-8/LC_NUMERIC", folder, name);
    return code != -1 && access(command, R_OK) == 0;
}

static void enter(const char *name) {
    char full[64];
    snprintf(full, sizeof full, "%s.UTF-8", name);
    assert_non_null(setlocale(LC_ALL, full));
    assert_string_not_equal(localeconv()->decimal_point, ".");
    printf("%s: decimal point of %zu bytes\n", full, strlen(localeconv()->decimal_point));
}

static void plans_read_and_write_the_same_bytes(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 1, 32);
    m.layers[1].scale = 0.08838834764f;
    m.layers[1].soft_cap = 1.5f;
    float centers[32];
    for (int c = 0; c < 32; ++c)
        centers[c] = (float)c / 7;
    setlocale(LC_ALL, "C");
    lk_plan *plan = make_plan("cocktail", &m);
    assert_int_equal(lk_plan_set_key_centers(plan, 1, 1, centers), LK_OK);
    char *expected = write_json(plan);
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        enter(names[i]);
        char *written = write_json(plan);
        assert_string_equal(written, expected);
        lk_plan *read = NULL;
        const lk_status status = read_json(written, strlen(written), &read);
        if (status != LK_OK)
            fail_msg("%s", sentence());
        const float *found = NULL;
        assert_int_equal(lk_plan_get_key_centers(read, 1, 1, &found), LK_OK);
        assert_memory_equal(found, centers, sizeof centers);
        assert_int_equal(lk_plan_validate(read, &m.geometry), LK_OK);
        char *again = write_json(read);
        assert_string_equal(again, expected);
        free(again);
        free(written);
        lk_plan_destroy(&read);
        setlocale(LC_ALL, "C");
    }
    free(expected);
    lk_plan_destroy(&plan);
}

static void sentences_have_points(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 32);
    m.layers[0].scale = 1.5f;
    lk_plan *plan = make_plan("kivi2", &m);
    m.layers[0].scale = 2.25f;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        enter(names[i]);
        expect_failure(lk_plan_validate(plan, &m.geometry), LK_E_MISMATCH,
                       "scale is 2.25, the plan is made for 1.5");
        assert_string_not_equal(localeconv()->decimal_point, ".");
        setlocale(LC_ALL, "C");
    }
    lk_plan_destroy(&plan);
}

int main(void) {
    if (!mkdtemp(folder))
        return 1;
    int compiled = 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        compiled = compiled && compile_locale(names[i]);
    int code = SKIPPED;
    if (compiled && setenv("LOCPATH", folder, 1) == 0) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(plans_read_and_write_the_same_bytes),
            cmocka_unit_test(sentences_have_points),
        };
        code = cmocka_run_group_tests_name("plan locale", tests, NULL, NULL);
    } else {
        printf(
            "skipped: no localedef with the sources of ps_AF and de_DE; Debian's package "
            "`locales` has them\n");
    }
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) == 0 ? code : 1;
}
