/* lowkey: a low-bit key/value cache for language models. All stable headers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_LOWKEY_H
#define LOWKEY_LOWKEY_H

#include <lowkey/base.h>
#include <lowkey/cache.h>
#include <lowkey/calibrate.h>
#include <lowkey/chunks.h>
#include <lowkey/context.h>
#include <lowkey/merge.h>
#include <lowkey/plan.h>
#include <lowkey/snapshot.h>
#include <lowkey/state.h>
#include <lowkey/step.h>
#include <lowkey/vulkan.h>

#endif
