/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The listeners that connections are led to: one table for policy.bpf.c and steer.bpf.c. */
#ifndef TSUGIKI_STEERED_H
#define TSUGIKI_STEERED_H

#include "policy.h"

/* The kernel takes out what listens no more. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, STEERED_MAX);
	__type(key, struct steered);
	__type(value, __u64);
} steered_listeners SEC(".maps");

#endif
