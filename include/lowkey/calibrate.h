/* lowkey: calibration. The statistics of a model and all planners.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_CALIBRATE_H
#define LOWKEY_CALIBRATE_H

#include <lowkey/auto.h>
#include <lowkey/chanmix.h>
#include <lowkey/costs.h>
#include <lowkey/pmkvq.h>
#include <lowkey/rope.h>
#include <lowkey/statistics.h>

#endif
