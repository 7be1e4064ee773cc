/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that serve. */
#ifndef TSUGIKI_GATE_THREADS_H
#define TSUGIKI_GATE_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* Ends the one thread that serves, if it is idle. Returns whether it is gone. */
bool gate_stop_thread(void);

/* Starts the first thread that serves. */
void gate_start_serving(void);

/*
 * Looks at all threads, and starts another if none serves. Returns whether any has done something
 * since the last look.
 */
bool gate_tick(void);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t gate_now(void);

/* Whether the first call that comes has to wake the watchdog (gate_wake_control). */
void gate_set_watchdog_sleeps(bool sleeps);

#endif
