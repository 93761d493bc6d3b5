// SPDX-License-Identifier: Apache-2.0
#include "format/bulk_tmpl.h"

namespace lk {

const BulkKernels kBulkAvx2 = {hash, count_bad_of};

}  // namespace lk
