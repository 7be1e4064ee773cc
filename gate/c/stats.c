// SPDX-License-Identifier: Apache-2.0
/* The gate's counters. Several threads add to these words: each is right, and two that are read
 * together may differ by a notification. */
#define _GNU_SOURCE
#include "stats.h"

#include <stdatomic.h>
#include <sys/socket.h>

#include "gate.h"

#define GATE_COUNTERS (sizeof(struct gate_counters) / sizeof(uint64_t))

static _Atomic uint64_t *gate_counters_of(struct board *b)
{
	return (void *)((char *)b + BOARD_COUNTERS);
}

void gate_count_at(size_t offset, uint64_t n)
{
	atomic_fetch_add_explicit(&gate_counters_of(gate.board)[offset / sizeof(uint64_t)], n,
				  memory_order_relaxed);
}

void gate_read_counters(struct board *b, struct gate_counters *to)
{
	uint64_t *words = (uint64_t *)to;

	for (size_t i = 0; i < GATE_COUNTERS; i++)
		words[i] = atomic_load_explicit(&gate_counters_of(b)[i], memory_order_relaxed);
}

static unsigned int gate_bucket(uint64_t nanoseconds)
{
	unsigned int bits = nanoseconds == 0 ? 0 : 64 - (unsigned int)__builtin_clzll(nanoseconds);

	return bits < GATE_TIMES ? bits : GATE_TIMES - 1;
}

void gate_count_answer(struct gate_worker *w, enum gate_outcome outcome)
{
	uint32_t call = w->request.call;

	if (w->outcome == GATE_BY_NOBODY)
		GATE_COUNT(calls[call].answered, 1);
	if (outcome == GATE_BY_GATE_REFUSED && w->outcome != outcome)
		GATE_COUNT(calls[call].refused, 1);
	w->outcome = outcome;
}

void gate_count_time(const struct gate_worker *w, uint64_t nanoseconds)
{
	GATE_COUNT(calls[w->request.call].time[gate_bucket(nanoseconds)], 1);
}

bool gate_say_stats(struct board *b, int to, uint64_t tag, int flags)
{
	struct gate_stats stats = {.version = GATE_VERSION, .call = GATE_STATS, .tag = tag};

	gate_read_counters(b, &stats.counters);
	return send(to, &stats, sizeof(stats), flags | MSG_NOSIGNAL) >= 0;
}

bool gate_say_bye(struct board *b, int to, int flags)
{
	const struct gate_request bye = {.version = GATE_VERSION, .call = GATE_BYE};

	/* No tag, because this is no answer to an order. */
	return gate_say_stats(b, to, 0, flags) &&
	       send(to, &bye, sizeof(bye), flags | MSG_NOSIGNAL) >= 0;
}
