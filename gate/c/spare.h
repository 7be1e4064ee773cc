/* SPDX-License-Identifier: Apache-2.0 */
/* The spare of the gate pool: a process that replaces the pool if the pool is killed. */
#ifndef TSUGIKI_GATE_SPARE_H
#define TSUGIKI_GATE_SPARE_H

#include <stdbool.h>

/* Starts the spare of this process. It calls TAKE_OVER, which does not return, when this process
 * has ended. Returns false if it could not be started. */
bool spare_start(void (*take_over)(void));

/* Whether the spare has been started and has not been seen to end. */
bool spare_is_there(void);

/* The spare's file POOL_FD_SPARE says that it has ended. */
void spare_ended(void);

#endif
