/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COUNT_H
#define COUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a client counts: operations, bytes, latencies and CPU time, first for
 * a warm-up and then for the time measured. One thread, one test per process.
 */

/* Monotonic time. */
uint64_t count_clock_ns(void);

/* Starts the warm-up. */
void count_begin(double warmup, double seconds);

/* The first socket took this long to make and connect; later calls are void. */
void count_connect(uint64_t since_ns);

/* One operation that began at since_ns is done. Says whether to go on. */
bool count_op(uint64_t since_ns, size_t bytes);

/* A datagram or its answer got lost. */
void count_lost(void);

/* Prints the line of JSON. */
void count_report(const char *test, size_t size);

#endif
