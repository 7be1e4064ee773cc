/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TSUGIKI_GUARDIAN_H
#define TSUGIKI_GUARDIAN_H

#include <stdint.h>

#define GUARDIAN_VERSION 1

/* What the guardian says: once when it is ready, with zeroes, and once when the
 * work is done. Both sides run on one machine: host byte order. */
struct guardian_report {
	uint32_t version;
	uint32_t undone;
	uint32_t failed;
};

#endif
