// SPDX-License-Identifier: Apache-2.0
/* The supervisor's orders, without the socket, so that they can be fuzzed. */
#define _GNU_SOURCE
#include "orders.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int gate_order_parse(const void *bytes, size_t length, unsigned int files, struct gate_order *order)
{
	memset(order, 0, sizeof(*order));
	memcpy(order, bytes, length < sizeof(*order) ? length : sizeof(*order));
	if (length != sizeof(*order) || order->version != GATE_VERSION)
		return EPROTO;
	if (files != (order->op == GATE_ORDER_RULES || order->op == GATE_ORDER_MEMORY))
		return EBADF;
	return 0;
}

static _Atomic uint32_t *gate_word(struct board *b, uint32_t word)
{
	switch (word) {
	case GATE_WORD_OWN_SOCKETS:
		return &b->own_sockets;
	case GATE_WORD_SERVICES:
		return &b->services;
	case GATE_WORD_AFGRAFT_SOCKETS:
		return &b->afgraft_sockets;
	case GATE_WORD_BOUND_CLIENTS:
		return &b->bound_clients;
	case GATE_WORD_EXPECTS:
		return &b->expects;
	case GATE_WORD_TRACED:
		return &b->traced;
	case GATE_WORD_NAMES_PEERS:
		return &b->names_peers;
	}
	return NULL;
}

int gate_order_set(struct board *b, const struct gate_order *order)
{
	_Atomic uint32_t *word = gate_word(b, order->word);

	if (order->word == GATE_WORD_SERVED) {
		atomic_fetch_or(&b->served, order->value);
		return 0;
	}
	if (word == NULL || order->value > 1)
		return EINVAL;
	atomic_store(word, order->value);
	return 0;
}

/* Copies words, each atomically: other threads might see plain writes before the first change of
 * the sequence, or after the second. */
static int gate_copy_rules(_Atomic uint32_t *to, int file, uint32_t length)
{
	uint32_t words[1024];

	for (uint32_t at = 0; at < length; at += sizeof(words)) {
		uint32_t want = length - at < sizeof(words) ? length - at : sizeof(words);
		ssize_t got;

		memset(words, 0, sizeof(words));
		got = pread(file, words, want, at);
		if (got != (ssize_t)want)
			return got < 0 ? errno : ENODATA;
		for (uint32_t i = 0; i < (want + 3) / 4; i++)
			atomic_store_explicit(&to[at / 4 + i], words[i], memory_order_relaxed);
	}
	return 0;
}

int gate_order_rules(struct board *b, int file, uint32_t length)
{
	_Atomic uint32_t *rules = (void *)((char *)b + BOARD_RULES);
	int error;

	if (length == 0 || length > BOARD_SIZE - BOARD_RULES)
		return EMSGSIZE;
	atomic_fetch_add_explicit(&b->sequence, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	error = gate_copy_rules(rules, file, length);
	if (error != 0)
		atomic_store_explicit(rules, 0, memory_order_relaxed); /* no image's magic */
	atomic_fetch_add_explicit(&b->sequence, 1, memory_order_release);
	return error;
}
