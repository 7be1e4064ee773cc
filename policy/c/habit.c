// SPDX-License-Identifier: Apache-2.0
/* This code uses no system call and no C library: it is part of programs. */
#include "habit.h"

/* Connections in succession that make a habit: at first, and most. Each wrong guess makes it four
 * times as many. */
#define HABIT_RUN	4u
#define HABIT_WRONG_MAX 6

bool habit_is_own(const struct habit *h)
{
	uint32_t wrong = atomic_load_explicit(&h->wrong, memory_order_relaxed);

	return atomic_load_explicit(&h->run, memory_order_relaxed) >= HABIT_RUN << 2 * wrong;
}

bool habit_is_told(const struct habit *h, bool own, bool in_place)
{
	return own != in_place ||
	       (!own && atomic_load_explicit(&h->run, memory_order_relaxed) != 0);
}

void habit_note(struct habit *h, bool own, bool in_place)
{
	uint32_t run = atomic_load_explicit(&h->run, memory_order_relaxed);
	uint32_t wrong = atomic_load_explicit(&h->wrong, memory_order_relaxed);
	bool guessed = habit_is_own(h) && !in_place;

	if (own && !in_place && run < UINT32_MAX)
		atomic_store_explicit(&h->run, run + 1, memory_order_relaxed);
	if (own)
		return;
	atomic_store_explicit(&h->run, 0, memory_order_relaxed);
	if (guessed && wrong < HABIT_WRONG_MAX)
		atomic_store_explicit(&h->wrong, wrong + 1, memory_order_relaxed);
}
