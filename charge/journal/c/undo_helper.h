/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TSUGIKI_UNDO_HELPER_H
#define TSUGIKI_UNDO_HELPER_H

#include <stdint.h>

#define UNDO_HELPER_VERSION 1

/* A report of the undo helper. It sends one when it is ready, with zeroes, and one when the work
 * is done. Both sides run on one machine: host byte order. */
struct undo_helper_report {
	uint32_t version;
	uint32_t undone;
	uint32_t failed;
};

#endif
