// SPDX-License-Identifier: Apache-2.0
/*
 * Calls of the i386 ABI, each by its own number and by socketcall(2), whose arguments the
 * kernel reads from memory.
 */
#include "driver.h"

#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>

#include "../i386.h"

/* What a call's pointers lead to. */
struct abi_memory {
	uint32_t args[6];
	struct driver_addr addr;
	union {
		char text[PAYLOAD_MAX];
		int value;
	};
};

static const struct {
	const char *name;
	long number;
	uint32_t of_socketcall;
} abi_calls[] = {
	{"socket", I386_SOCKET, 1},   {"bind", I386_BIND, 2},
	{"connect", I386_CONNECT, 3}, {"listen", I386_LISTEN, 4},
	{"sendto", I386_SENDTO, 11},  {"setsockopt", I386_SETSOCKOPT, 14},
};

static uint32_t abi_at(const void *pointer)
{
	return (uint32_t)(uintptr_t)pointer;
}

/* Writes the arguments of one of the calls. */
static void abi_arguments(struct actor *a, struct abi_memory *m, uint32_t what, int fd)
{
	static const uint32_t names[] = {SO_REUSEADDR, SO_REUSEPORT, SO_BROADCAST, SO_MARK};
	uint32_t *args = m->args, n = (uint32_t)driver_payload(a, m->text);
	uint32_t name = names[driver_pick(a, 4)];

	memset(args, 0, sizeof(m->args));
	m->addr = what == 1 ? driver_own(a) : driver_destination(a);
	args[0] = (uint32_t)fd;
	switch (what) {
	case 0:
		args[0] = driver_pick(a, 2) ? AF_INET : AF_INET6;
		args[1] = (driver_pick(a, 2) ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK;
		break;
	case 1:
	case 2:
		args[1] = abi_at(&m->addr);
		args[2] = m->addr.len;
		break;
	case 4:
		args[1] = abi_at(m->text);
		args[2] = n;
		args[3] = MSG_DONTWAIT | MSG_NOSIGNAL | (driver_pick(a, 4) ? 0 : MSG_FASTOPEN);
		args[4] = abi_at(&m->addr);
		args[5] = m->addr.len;
		break;
	case 5:
		m->value = 1;
		args[1] = SOL_SOCKET;
		args[2] = name;
		args[3] = abi_at(&m->value);
		args[4] = sizeof(m->value);
		break;
	}
}

void call_i386(struct actor *a)
{
	uint32_t what = driver_pick(a, 6);
	bool indirect = driver_pick(a, 2);
	int fd = driver_fd(a);
	struct abi_memory *m = i386_page();
	uint32_t *args = m->args;
	long result;

	if (m == MAP_FAILED)
		return;
	abi_arguments(a, m, what, fd);
	if (indirect)
		result = i386_call(I386_SOCKETCALL, abi_calls[what].of_socketcall,
				   (long)abi_at(args), 0, 0, 0, 0);
	else
		result = i386_call(abi_calls[what].number, args[0], args[1], args[2], args[3],
				   args[4], args[5]);
	driver_say(a, result, "i386 %s%s slot=%d %s", abi_calls[what].name,
		   indirect ? " by socketcall" : "", a->slot, driver_text(&m->addr));
	if (what == 0)
		driver_put(a, (int)result);
	munmap(m, 4096);
}

/* A word of memory that another thread changes. */
struct abi_flip {
	_Atomic uint32_t *word;
	uint32_t one, other;
	atomic_bool over;
};

static void *abi_flip(void *arg)
{
	struct abi_flip *f = arg;

	while (!atomic_load(&f->over)) {
		atomic_store(f->word, f->one);
		atomic_store(f->word, f->other);
	}
	return NULL;
}

/* setsockopt(2) by socketcall(2), whose option is now a harmless one and now another. */
void call_flip(struct actor *a)
{
	static const struct {
		uint32_t level, one, other;
		bool named; /* its value is an interface's name */
	} options[] = {
		{SOL_SOCKET, SO_KEEPALIVE, SO_BINDTODEVICE, true},
		{SOL_SOCKET, SO_KEEPALIVE, 62 /* SO_BINDTOIFINDEX */, false},
		{SOL_SOCKET, SO_KEEPALIVE, SO_MARK, false},
		{IPPROTO_IP, IP_TTL, 50 /* IP_UNICAST_IF */, false},
		{IPPROTO_IP, IP_TTL, IP_TRANSPARENT, false},
		{IPPROTO_IPV6, IPV6_UNICAST_HOPS, 76 /* IPV6_UNICAST_IF */, false},
		{IPPROTO_TCP, TCP_KEEPCNT, TCP_REPAIR, false},
	};
	uint32_t what = driver_pick(a, sizeof(options) / sizeof(options[0]));
	int fd = driver_fd(a), link = atoi(driver_of(a, &world_links));
	struct abi_memory *m = i386_page();
	struct abi_flip flip = {.one = options[what].one, .other = options[what].other};
	pthread_t thread;

	if (m == MAP_FAILED)
		return;
	flip.word = (_Atomic uint32_t *)&m->args[2];
	m->value = link;
	if (options[what].named)
		snprintf(m->text, sizeof(m->text), "alt");
	memcpy(m->args,
	       (uint32_t[]){(uint32_t)fd, options[what].level, options[what].one, abi_at(&m->value),
			    sizeof(m->value)},
	       5 * sizeof(uint32_t));
	if (a->depth == 0 && pthread_create(&thread, NULL, abi_flip, &flip) == 0) {
		for (int i = 0; i < 60; i++)
			i386_call(I386_SOCKETCALL, 14, (long)abi_at(m->args), 0, 0, 0, 0);
		atomic_store(&flip.over, true);
		pthread_join(thread, NULL);
		driver_say(a, 0, "flip slot=%d %u/%u", a->slot, options[what].level,
			   options[what].other);
	}
	munmap(m, 4096);
}
